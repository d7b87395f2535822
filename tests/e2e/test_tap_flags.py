"""What ``specwatch tap flags`` prints is read as intended by systemd and by vLLM's parser."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import specwatch_tap
from specwatch.generate import tap
from specwatch.vllm_cli import read_command
from specwatch.vllm_cli.flags import MIDDLEWARE, RECORD, TIMINGS
from tests.lab.systemd_machine import SystemdMachine

UNIT = "specwatch-tap-flags.service"
VLLM = "/opt/tap-flags/vllm"
SEEN = "/run/tap-flags.json"
PRINTER = f"""\
#!/bin/sh
exec {sys.executable} -c 'import json, os, sys
json.dump([sys.argv[1:], dict(os.environ)], open("{SEEN}", "w"))' "$@"
"""
HOSTILE = [
    '{"method": "ngram", "a": "b c"}',
    "p$HOME",
    "${X}y",
    "$$",
    "50%",
    "%n %%",
    "",
    "; ",
    "it's",
    'say "x"',
    "back\\slash",
    "\\n",
    "tab\there",
    "new\nline",
    "é語",
    "#c",
    "end\\",
    "a=b'c",
    "*",
    "\x1b[1m\x01",
    "-x",
]

PARSE = """\
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser())
found = []
for words in json.load(sys.stdin):
    said = parser.parse_args(words)
    speculates = said.speculative_config or said.spec_method or said.spec_tokens or said.spec_model
    level = said.per_request_spec_decode_metrics
    found.append([said.middleware, level, said.enable_per_request_metrics, bool(speculates)])
print(json.dumps(found))
"""
FLAGS = (
    "",
    '-sc \'{"method": "ngram"}\' --mi a.B',
    "-sc=null --middleware=a.B --middle c.D",
    "--specul.method ngram --api-key a b --per-req summary --enable-pe",
    "--speculative_config.num_speculative_tokens=3 --per_request_spec_decode_metrics=detailed",
    "--speculative-config {} --enable_per_request_metrics --served-model-name x y",
    "--spec-tok 5 --spec_method=ngram --performance-mode throughput",
    "--spec-mo d --per-request-spec-decode-metrics none --specialize-active-lora",
)


def advised(*words: str, environment: dict[str, str] | None = None) -> tap.TapAdvice:
    command = read_command(words)
    return tap.advise((0, 32), environment=environment or {}, timings=True, command=command)


def test_systemd_starts_just_the_words_of_the_drop_in(systemd_machine: SystemdMachine) -> None:
    machine = systemd_machine
    value = '1 2% $3 "q" back\\'
    advice = advised(
        f"TAP_TEST={value}", VLLM, "serve", *HOSTILE, environment={"TAP_TEST_BUCKETS": "0,0.5"}
    )
    machine.write_file(VLLM, PRINTER, mode=0o755)
    unit = f"/etc/systemd/system/{UNIT}"
    machine.write_file(unit, "[Service]\nType=oneshot\nExecStart=/bin/false before\n")
    machine.write_file(f"{unit}.d/50-specwatch-tap.conf", tap.drop_in(advice, "true"))
    done = machine.run("systemd-analyze", "verify", unit)
    assert done.stdout + done.stderr == ""
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", UNIT)
    words, environment = json.loads(machine.run("cat", SEEN).stdout)
    assert advice.command is not None
    assert words == list(advice.command.words[1:])
    assert environment["TAP_TEST"] == value
    assert environment["TAP_TEST_BUCKETS"] == "0,0.5"


def test_vllm_reads_its_command_line_as_we_do_and_takes_the_flags(vllm_install: Path) -> None:
    """In every spelling: before, what we found in it; afterwards, what we added."""
    commands = [read_command(["vllm", "serve", *shlex.split(flags)]) for flags in FLAGS]
    changed = [advised(*command.words).command for command in commands]
    lines = [command.words[2:] for command in (*commands, *changed) if command is not None]
    done = subprocess.run(
        [vllm_install / "bin" / "python", "-c", PARSE],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 2 * len(FLAGS)
    for flags, command, before, after in zip(
        FLAGS, commands, found[: len(FLAGS)], found[len(FLAGS) :], strict=True
    ):
        middleware, level, timings, speculation = before
        arguments = command.arguments
        assert [option.value for option in arguments.given(MIDDLEWARE)] == middleware, flags
        assert (arguments.value(RECORD) or "none") == level, flags
        assert bool(arguments.given(TIMINGS)) == timings, flags
        assert after[0] == [specwatch_tap.MIDDLEWARE, *middleware], flags
        records = level if level != "none" or not speculation else "summary"
        assert after[1:] == [records, True, speculation], flags
    for words in (command.words for command in changed if command is not None):
        assert advised(*words).flags == (), "what was advised needs no more advice"
