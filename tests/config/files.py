"""Configurations of the tests, from a text or from a file of tests/data."""

from __future__ import annotations

import shutil
from pathlib import Path

from specwatch.config.loading import Config, load, parse

DATA = Path(__file__).parents[1] / "data"


def one_target(text: str = "", folder: Path = Path(), **environ: str) -> Config:
    """A configuration of one target, and some further sections."""
    targets = "targets: [{url: 'http://h', name: chat}]\n"
    return parse(targets + text, "specwatch.yml", environ=environ, hostname="gpu-7", folder=folder)


def valid(name: str, folder: Path, **environ: str) -> Config:
    """A file of tests/data, read in the folder of the files that it names."""
    path = Path(shutil.copy(DATA / name, folder))
    return load(path, environ=environ, hostname="gpu-7")
