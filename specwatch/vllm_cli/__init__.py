"""Command lines of ``vllm serve``: one table of its flags; reading, stripping, adding flags.

Only the command is read: not a model on a hub that brings its own speculation, nor what an image or
a script does with its arguments.
"""

from __future__ import annotations

from specwatch.vllm_cli.command import ServeCommand, read_command
from specwatch.vllm_cli.config_file import ReadFile
from specwatch.vllm_cli.edit import Stripped, strip, with_flags

__all__ = ["ReadFile", "ServeCommand", "Stripped", "read_command", "strip", "with_flags"]
