"""``specwatch strip``: removes speculation from a command that starts vLLM."""

from __future__ import annotations

import shlex

import click

from specwatch.cli import options
from specwatch.cli.output import for_a_shell, for_json
from specwatch.errors import CannotStrip, ConfigError
from specwatch.runtime.text_file import read_text
from specwatch.vllm_cli import strip
from specwatch.wording.text import clean_lines


@click.command(name="strip")
@options.json_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def command(as_json: bool, words: tuple[str, ...]) -> None:
    """Print COMMAND, which starts vLLM or llama-server, without its flags for speculation; the rest
    is unchanged.

    It handles all spellings of all versions of vLLM, wrappers such as env, numactl or uv run,
    docker run, sh -c 'exec ...', and a --config FILE, whose other settings are then written as
    flags. What was removed is printed on standard error.

    It refuses a model with built-in speculation, if it can read its config.json; one on a hub is
    not read.

    Exit code 2, with the reason, when the result would not be certain.
    """
    if not words:
        raise click.UsageError("give the command that starts vLLM: -- vllm serve ...")
    try:
        stripped = strip(words, read_file=read_text)
    except CannotStrip as error:
        raise ConfigError(f"COMMAND: {error}") from error
    if as_json:
        options.print_json(
            {
                "command": list(map(for_json, stripped.command)),
                "removed": list(map(for_json, stripped.removed)),
                "notes": list(map(for_json, stripped.notes)),
            }
        )
        return
    click.echo(clean_lines(for_a_shell(stripped.command)))
    removed = shlex.join(stripped.removed)
    click.echo(clean_lines(f"removed: {removed}" if removed else "nothing to remove"), err=True)
    for note in stripped.notes:
        click.echo(clean_lines(note), err=True)
