"""``specwatch simulate``: a simulated vLLM in the foreground."""

from __future__ import annotations

import signal
import threading

import click

from specwatch.errors import ConfigError
from specwatch.lab.simulator.command_line import parse_flags
from specwatch.lab.simulator.server import SimulatedServer


@click.command(
    name="simulate",
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[MODEL] [FLAGS]...")
def command(arguments: tuple[str, ...]) -> None:
    """Run a simulated vLLM with the command line of `vllm serve`.

    It serves /metrics, /health, /version, /v1/models, /v1/completions and /v1/chat/completions.
    Any flag of `vllm serve` is accepted; one without effect is reported and ignored. Draft tokens
    follow `num_speculative_tokens_per_batch_size` in `--speculative-config`, and orders in
    `$SPECWATCH_SWITCH_DIRECTORY` with `--scheduler-cls specwatch_tap.Scheduler`.
    Additional flags:

    \b
      --simulated-rate N               requests a second of built-in traffic (0), which
                                       --middleware also sees
      --simulated-concurrency N        requests kept in flight by built-in traffic (0)
      --simulated-rate-profile T:F,..  factor F on the rate at second T (0:1)
      --simulated-temperatures T:W,..  mix of temperatures and weights (0:0.4,0.7:0.4,1:0.2)
      --simulated-prompt-tokens N      mean prompt length (200)
      --simulated-output-tokens N      mean output length (120)
      --simulated-acceptance-scale F   factor on the acceptance rates (1)
      --simulated-drift T:F,..         factor on the acceptance rates at second T (0:1)
      --simulated-step-time SECONDS    a step without drafts, one request (0.02)
      --simulated-draft-cost SHARE     a draft token, in such steps (0.11)
      --simulated-free-tokens N        tokens verified without extra cost (48)
      --simulated-kv-cache-tokens N    size of the KV cache (131072, or twice the context)
      --simulated-time-scale F         simulated seconds a second (1)
      --simulated-startup SECONDS      time before it listens (0)
      --simulated-engine-version V     metrics of 0.8.5, 0.10.2 or 0.32.0 (0.32.0)
      --simulated-multiprocess         metrics page of several API processes
      --simulated-seed N               random seed (0)
    """
    if "-h" in arguments:  # not an option: click would also find it in vLLM's -dph
        click.echo(click.get_current_context().get_help())
        return
    try:
        server = SimulatedServer(parse_flags(arguments))
        stopping = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        server.start()
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"simulated vLLM at {server.url}")
    stopping.wait()
    server.stop()
