"""Groups of commands: a mistyped one gets the nearest, an error becomes an exit code."""

from __future__ import annotations

import difflib
import importlib
import io
import sys
from collections.abc import Mapping
from typing import IO, Any

import click

from specwatch.errors import ConfigError, SpecwatchError
from specwatch.wording.text import clean_lines

_INTERRUPTED = 130
"""As shells say that Ctrl-C ended a command."""


class Group(click.Group):
    """Exits with 2 for what the user has to change, with 1 for a "no"."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors of ours become messages without a traceback."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            # What its encoding lacks is spelt, as on standard error, and raises nothing.
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise _Refusal(str(error)) from error
        except SpecwatchError as error:
            raise _No(str(error)) from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(_INTERRUPTED) from None

    def list_commands(self, _: click.Context) -> list[str]:
        """In the order in which they were defined."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names; else a usage error that helps."""
        known = self.list_commands(ctx)
        known_command = args[0].startswith("-") or self.get_command(ctx, args[0])
        if not ctx.resilient_parsing and not known_command:
            near = difflib.get_close_matches(args[0], known, n=1)
            remedy = f'did you mean "{near[0]}"?' if near else f"there are: {', '.join(known)}"
            raise click.UsageError(f"no command {clean_lines(args[0])!r}; {remedy}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """Loads the module of a command, which calls it ``command``, only when it is used."""

    def __init__(
        self, *args: Any, summaries: Mapping[str, str], modules: str, **kwargs: Any
    ) -> None:
        """``summaries`` says what each command does, nothing for one that is hidden.

        ``modules`` is how the names of their modules begin.
        """
        super().__init__(*args, **kwargs)
        self._summaries = summaries
        self._modules = modules

    def list_commands(self, _: click.Context) -> list[str]:
        """All that are not hidden, in their order."""
        return [name for name, summary in self._summaries.items() if summary]

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        """One, loaded now; None where there is none such."""
        if name not in self._summaries:
            return None
        module = importlib.import_module(self._modules + name.replace("-", "_"))
        command: click.Command = module.command
        return command

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Their summaries, without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl([item for item in self._summaries.items() if item[1]])


class _No(click.ClickException):
    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(clean_lines(self.message), file=file, err=file is None)


class _Refusal(_No):
    exit_code = 2
