"""A real llama-server: built once for the lab, with the tiny models as GGUF.

``python -m tests.lab.llama_server`` puts both in place; what is there already is left alone.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from tests.lab import tiny_gguf
from tests.lab.vllm_install import alone, install, lab_folder, tiny_models

VERSION, BUILD = "11434.0.0", 1
"""Of llama.cpp, and of the script that builds it."""
HERE = Path(__file__).parent
MODELS = ("target", "draft-good", "draft-bad")


def llama_folder() -> Path:
    """Where ``llama-server`` is, whether or not it is there."""
    return lab_folder() / f"llama-{VERSION}-{BUILD}"


def is_built() -> bool:
    """Whether the build in :func:`llama_folder` was finished."""
    return (llama_folder() / "installed").exists()


def build() -> Path:
    """Build it unless it is there; returns its folder.

    Raises ``subprocess.CalledProcessError``; the reason is on stderr.
    """
    subprocess.run([HERE / "llama_build.sh", llama_folder(), VERSION], check=True)
    return llama_folder()


def tiny_ggufs(models: Path) -> Path:
    """The folder with a GGUF file for each of the tiny checkpoints, written the first time."""
    recipe = Path(tiny_gguf.__file__).read_bytes() + str(models).encode()
    folder = lab_folder() / f"tiny-gguf-{hashlib.sha256(recipe).hexdigest()[:12]}"
    with alone(folder):
        if not folder.exists():
            unfinished = folder.with_suffix(f".{os.getpid()}")
            unfinished.mkdir()
            for name in MODELS:
                tiny_gguf.write(models / name, unfinished / f"{name}.gguf")
            unfinished.rename(folder)
    return folder


def command(folder: Path, models: Path, port: int, *flags: str) -> list[str]:
    """A command that serves the target as ``tiny`` on the loopback, four requests at a time."""
    return [
        str(folder / "llama-server"),
        "--model",
        str(models / "target.gguf"),
        "--alias",
        "tiny",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--metrics",
        "--ctx-size",
        "8192",
        "--parallel",
        "4",
        "--threads",
        "1",
        *flags,
    ]


def draft_flags(models: Path, draft: str = "draft-good", *, k: int = 4) -> list[str]:
    """Flags of speculation with a draft model."""
    return [
        "--model-draft",
        str(models / f"{draft}.gguf"),
        "--spec-type",
        "draft-simple",
        "--spec-draft-n-max",
        str(k),
        "--threads-draft",
        "1",
    ]


if __name__ == "__main__":
    print(build())
    print(tiny_ggufs(tiny_models(install())))
