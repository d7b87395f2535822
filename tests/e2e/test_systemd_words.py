"""What we take for the words of a command is what a program gets that a real systemd starts."""

from __future__ import annotations

import contextlib
import json
import random
import sys

import pytest

from specwatch.actuators.systemd.environment import parse_environment_file
from specwatch.actuators.systemd.loaded_unit import UnitCommand
from tests.e2e.processes import CHECKOUT
from tests.e2e.unit_lab import UNITS
from tests.lab.systemd_machine import SystemdMachine

COMMANDS = 300
UNIT = "lab-words.service"
PIECES = [
    "$A",
    "${A}",
    "$B",
    "${B}",
    "$E",
    "${E}",
    "$NONE",
    "${NONE}",
    "$$",
    "$",
    "${",
    "}",
    ":",
    "a",
    " ",
    "'",
    '"',
    "\\",
    "%",
    "\n",
    "\t",
    "語",
    ";",
    '{"k": [1, 2]}',
    "--x=",
    "-",
    "#",
    "$F",
    "${F}",
    "$G",
    "${G}",
    "$H",
    "${H}",
    "$U",
    "${U}",
    "=",
    "$A-b",
    "@",
    "*",
    "~",
]
FILE_PIECES = [
    "'",
    '"',
    "\\",
    "a",
    " ",
    "  ",
    "\t",
    "#",
    ";",
    "$A",
    "\\\n",
    "\\n",
    "=",
    "語",
    "`",
    "b c",
    "\r",
    '\\"',
    "\\\\",
]
_SHOW = """\
#!/bin/sh
number=$1
shift
for word; do printf '%s\\0' "$word"; done > "/run/words/$number"
"""
_READ = """\
import json, sys
from specwatch.actuators.systemd.bus import SystemdBus
from specwatch.actuators.systemd.command import words_of
from specwatch.actuators.systemd.environment import environment_of

bus = SystemdBus()
unit = bus.load(sys.argv[1])
environment = environment_of(unit, bus.environment(), passes_on=False)
bus.close()
found = []
for number, command in enumerate(unit.commands):
    ours = [word for item in words_of(command, environment) for word in item.words]
    with open(f"/run/words/{number}", encoding="utf-8", newline="") as file:
        theirs = file.read().split(chr(0))[:-1]
    found.append([command.path, command.words, command.flags, ours[2:], theirs])
print(json.dumps(found))
"""
_SETTINGS = """\
[Service]
Type=oneshot
Environment="A=one two" "B='x y' \\\\"z" E= F=hidden U=set
EnvironmentFile=/etc/lab-words/*.env
EnvironmentFile=-/etc/lab-words/none
UnsetEnvironment=U
"""


def random_text(dice: random.Random, pieces: list[str], longest: int) -> str:
    return "".join(dice.choices(pieces, k=dice.randint(0, longest)))


def environment_file(dice: random.Random) -> str:
    """Values that try every state of the reader, in a file that is not refused."""
    while True:
        lines = [f"{name}={random_text(dice, FILE_PIECES, 8)}" for name in "FGHAFGH"]
        text = "".join(f"{line}\n; comment\n" for line in lines)
        with contextlib.suppress(ValueError):
            parse_environment_file(text)
            return text


def commands(dice: random.Random) -> list[UnitCommand]:
    flags: tuple[tuple[str, ...], ...] = (
        (),
        (),
        (),
        ("no-env-expand",),
        ("privileged",),
        ("no-setuid",),
        ("ambient",),
        ("ignore-failure",),
    )
    return [
        UnitCommand(
            "/opt/lab/show",
            (dice.choice(["/opt/lab/show", "another name"]), str(number), *words(dice)),
            dice.choice(flags),
        )
        for number in range(COMMANDS)
    ]


def words(dice: random.Random) -> list[str]:
    return [random_text(dice, PIECES, 4) for _ in range(dice.randint(1, 5))]


@pytest.mark.parametrize("seed", range(2))
def test_what_is_read_and_written_is_what_systemd_reads(
    systemd_machine: SystemdMachine, seed: int
) -> None:
    """Commands arrive as they were written, and each program gets the words that we expect."""
    dice = random.Random(seed)
    machine = systemd_machine
    wanted = commands(dice)
    machine.write_file("/opt/lab/show", _SHOW, mode=0o755)
    for name in ("a", "b"):
        machine.write_file(f"/etc/lab-words/{name}.env", environment_file(dice))
    lines = "".join(f"ExecStart={command.line()}\n" for command in wanted)
    machine.write_file(f"{UNITS}/{UNIT}", _SETTINGS + lines)
    machine.shell("rm -rf /run/words; mkdir /run/words; systemctl daemon-reload")
    machine.run("systemctl", "start", UNIT, timeout=600)
    read = ("env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-c", _READ, UNIT)
    found = json.loads(machine.run(*read).stdout)
    for command, (path, spelt, flags, ours, theirs) in zip(wanted, found, strict=True):
        assert UnitCommand(path, tuple(spelt), tuple(flags)) == command
        assert ours == theirs, command
