"""Command lines of ``vllm serve``: one table of its flags; to read, strip and extend them.

What is beyond the command cannot be seen: a model that brings its own speculation from a hub, or
what an image or a script does with the words that it gets.
"""

from __future__ import annotations

from specwatch.vllm_cli.command import ServeCommand, read_command
from specwatch.vllm_cli.config_file import ReadFile
from specwatch.vllm_cli.edit import Stripped, strip, with_flags

__all__ = ["ReadFile", "ServeCommand", "Stripped", "read_command", "strip", "with_flags"]
