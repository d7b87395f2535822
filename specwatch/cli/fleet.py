"""``specwatch fleet``: the daemons that divide targets among them, and who watches what."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import click

from specwatch.cli import commands, options
from specwatch.cli.terminal import Columns, Terminal, paragraph, table
from specwatch.domain.fleet import FleetMember, FleetStatus
from specwatch.domain.units import quoted
from specwatch.errors import SpecwatchError
from specwatch.store import fleet_rows
from specwatch.store.fleet_rows import Watch
from specwatch.store.readers import Reader
from specwatch.wording import figures
from specwatch.wording import fleet as words
from specwatch.wording.text import LONGEST_SENTENCE, shown

_MEMBERS: Columns[FleetMember] = {
    "member": lambda member: shown(member.member),
    "state": words.state,
    "targets": lambda member: figures.number(member.watched if member.live else 0),
    "up": lambda member: (
        figures.span(time.time() - member.started) if member.live else figures.UNKNOWN
    ),
    "version": lambda member: shown(member.version),
    "page": lambda member: shown(member.address, LONGEST_SENTENCE),
}


@click.group(name="fleet", cls=commands.CommandGroup)
def command() -> None:
    """Daemons that divide their targets: those with `fleet` in the configuration.

    These commands read the database that the members share.
    """


@command.command(short_help="the members, and who watches what")
@click.argument("target", required=False, metavar="[TARGET]")
@options.store_options
def status(target: str | None, file: Path | None, database: str | None, as_json: bool) -> None:
    """Show the members of each fleet in the database, or which of them watches TARGET.

    Exit code 1 without a fleet or a live member, and when nobody watches some target, or a member
    has other targets than the rest; with TARGET, when nobody watches it.
    """
    reader = Reader.of(options.database_url(database, file))
    with closing(reader), reader.connected() as connection:
        known = fleet_rows.fleets(connection)
    if not known:
        raise SpecwatchError(
            "no daemon in the database shares its targets; give each member the same `daemon` and"
            " `database`, and the key `fleet`"
        )
    chosen = {
        daemon: [watch for watch in watches if target in (None, watch.target)]
        for daemon, (_, watches) in known.items()
    }
    if target is not None and not any(chosen.values()):
        raise SpecwatchError(f"no fleet has a target {quoted(target)}")
    if as_json:
        fleets = [
            {
                "daemon": daemon,
                "targets": fleet.targets,
                "unwatched": fleet.unwatched,
                "members": [
                    {
                        "member": one.member, "live": one.live, "seen_ago": one.seen_ago,
                        "watched": one.watched if one.live else 0, "started": one.started,
                        "version": one.version, "address": one.address,
                        "same_targets": one not in fleet.unlike,
                    }
                    for one in fleet.members
                ],
                "watched": [watch._asdict() for watch in chosen[daemon]],
            }
            for daemon, (fleet, _) in known.items()
        ]  # fmt: skip
        options.print_json({"fleets": fleets})
    elif target is not None:
        for daemon, watches in chosen.items():
            for watch in watches:
                _show_watch(known[daemon][0], watch)
    else:
        Terminal().blocks(
            [
                (f"{shown(daemon)}: {words.heading(fleet)}", "bold"),
                *(line for text in words.problems(fleet) for line in paragraph(text, "red")),
                *table(_MEMBERS, fleet.members, style=lambda one: "" if one.live else "dim"),
            ]
            for daemon, (fleet, _) in known.items()
        )
    wrong = [
        not fleet.live or fleet.unwatched or fleet.unlike
        if target is None
        else any(not watch.member for watch in chosen[daemon])
        for daemon, (fleet, _) in known.items()
    ]
    if any(wrong):
        raise click.exceptions.Exit(1)


def _show_watch(fleet: FleetStatus, watch: Watch) -> None:
    """Print who watches a target."""
    name = shown(watch.target)
    if not watch.member:
        Terminal().lines(paragraph(f"{name}: nobody watches it now", "red"))
        return
    address = next(one.address for one in fleet.members if one.member == watch.member)
    since = figures.moment(watch.since, seconds=True)
    where = shown(address, LONGEST_SENTENCE)
    Terminal().line(f"{name}: watched by {shown(watch.member)} since {since}, {where}", wrap=False)
