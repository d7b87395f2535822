"""Groups of commands: suggestions for mistyped ones, and exit codes for errors."""

from __future__ import annotations

import difflib
import importlib
import io
import sys
from collections.abc import Mapping
from typing import IO, Any

import click

from specwatch.cli import examples
from specwatch.errors import ConfigError, SpecwatchError
from specwatch.wording.text import clean_lines

_INTERRUPTED = 130
"""The exit code of shells for Ctrl-C."""


class CommandGroup(click.Group):
    """Exits with 2 for an error that the user has to correct, with 1 for others."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a SpecwatchError becomes a message without a traceback."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Characters outside its encoding are escaped, as on standard error.
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise _ConfigFailure(str(error)) from error
        except SpecwatchError as error:
            raise _Failure(str(error)) from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(_INTERRUPTED) from None

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        """The command of a name, with examples in its help; None for an unknown name."""
        command = self.defined(name)
        if command is not None:
            words = f"{self.name} {name}".removeprefix("specwatch ")
            command.epilog = examples.epilog(words)
        return command

    def defined(self, name: str) -> click.Command | None:
        """The command of a name as it is defined; None for an unknown name."""
        return self.commands.get(name)

    def list_commands(self, _: click.Context) -> list[str]:
        """In the order in which they were defined."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first argument; else a usage error with a suggestion."""
        names = self.list_commands(ctx)
        known_command = args[0].startswith("-") or self.get_command(ctx, args[0])
        if not ctx.resilient_parsing and not known_command:
            near = difflib.get_close_matches(args[0], names, n=1)
            remedy = f'did you mean "{near[0]}"?' if near else f"there are: {', '.join(names)}"
            raise click.UsageError(f"no command {clean_lines(args[0])!r}; {remedy}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(CommandGroup):
    """Imports the module of a command, where it is called ``command``, when it is used."""

    def __init__(
        self, *args: Any, summaries: Mapping[str, str], modules: str, **kwargs: Any
    ) -> None:
        """``summaries`` are the help of each command, empty for a hidden one.

        ``modules`` is the prefix of the names of their modules.
        """
        super().__init__(*args, **kwargs)
        self._summaries = summaries
        self._modules = modules

    def list_commands(self, _: click.Context) -> list[str]:
        """The names of those that are not hidden, in their order."""
        return [name for name, summary in self._summaries.items() if summary]

    def defined(self, name: str) -> click.Command | None:
        """The command of a name, imported now; None for an unknown name."""
        if name not in self._summaries:
            return None
        module = importlib.import_module(self._modules + name.replace("-", "_"))
        command: click.Command = module.command
        return command

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Their summaries, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([item for item in self._summaries.items() if item[1]])


class _Failure(click.ClickException):
    exit_code = 1

    def show(self, _: IO[Any] | None = None) -> None:
        from specwatch.cli.terminal import Terminal

        terminal = Terminal(stderr=True)
        for line in clean_lines(self.message).split("\n"):
            terminal.line(line)


class _ConfigFailure(_Failure):
    exit_code = 2
