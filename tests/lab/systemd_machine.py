"""A throwaway machine with a real systemd, as an object."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

SCRIPT = Path(__file__).parent / "systemd_machine.sh"
NEEDED = {
    "systemd-nspawn": "systemd-container",
    "dbus-daemon": "dbus",
    "nsenter": "util-linux",
    "pgrep": "procps",
}
"""Programs that the machine needs, and the Debian packages that bring them."""

_NOT_SHARED = ("/tmp", "/run", "/dev/shm")


def missing() -> str | None:
    """Why no such machine can run here, as a sentence; None when it can."""
    if os.geteuid() != 0:
        return "a machine with systemd needs root"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "a machine with systemd needs overlayfs (modprobe overlay)"
    if lacking := sorted(package for tool, package in NEEDED.items() if not shutil.which(tool)):
        return f"a machine with systemd needs the packages {' '.join(lacking)}"
    return None


def bindings(folders: Iterable[Path]) -> list[str]:
    """nspawn flags for those of the folders that the overlay of / does not show."""
    root_device = os.stat("/").st_dev
    unseen = {
        folder.resolve()
        for folder in folders
        if os.stat(folder).st_dev != root_device or str(folder.resolve()).startswith(_NOT_SHARED)
    }
    return [f"--bind-ro={folder}" for folder in sorted(unseen)]


class SystemdMachine:
    """A booted machine. Its file system is a copy of this one's, its network is this one's.

    The checkout and the running Python are there under the same paths, read-only where they are
    bound. Units written to ``/etc/systemd/system`` need ``run("systemctl", "daemon-reload")``.
    """

    def __init__(self, root: Path, shared: Iterable[Path] = ()) -> None:
        """``shared`` are folders that both can write to."""
        self.root = root
        self._shared = tuple(shared)

    def up(self) -> None:
        """Boot it, in one to three seconds; ``subprocess.CalledProcessError`` when that fails."""
        checkout = Path(__file__).parents[2]
        python = {Path(sys.prefix), Path(sys.base_prefix)}
        flags = bindings({checkout, *python})
        flags += [f"--bind={folder}" for folder in self._shared]
        subprocess.run([SCRIPT, "up", self.root, *flags], check=True, timeout=300)

    def down(self) -> None:
        """Power it off and remove what it wrote."""
        subprocess.run([SCRIPT, "down", self.root], check=True, timeout=180)

    def run(
        self, *command: str, check: bool = True, timeout: float = 180, input: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside as root, with its output as text.

        Raises :class:`AssertionError` with the output when it fails, unless ``check`` is off.
        """
        done = subprocess.run(
            [SCRIPT, "exec", self.root, *command],
            capture_output=True,
            text=True,
            timeout=timeout,
            input=input,
            stdin=None if input is not None else subprocess.DEVNULL,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done

    def shell(self, script: str) -> str:
        """Run a script with ``sh -e`` inside; returns what it wrote to stdout."""
        return self.run("sh", "-ec", script).stdout

    def entering(self) -> tuple[str, ...]:
        """The beginning of a command that runs in the machine as a child of this process."""
        done = subprocess.run(
            [SCRIPT, "leader", self.root], check=True, timeout=30, capture_output=True, text=True
        )
        return ("nsenter", "-t", done.stdout.strip(), "-m", "-p", "--")

    def show(self, name: str, unit: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "-P", name, unit).stdout.strip()

    def write_file(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file inside, with its folder."""
        self.run(
            "sh",
            "-ec",
            'mkdir -p "$(dirname "$1")"; cat > "$1"; chmod "$2" "$1"',
            "sh",
            path,
            f"{mode:o}",
            input=text,
        )

    def journal(self, unit: str) -> str:
        """What the unit logged, without time and host."""
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit).stdout
