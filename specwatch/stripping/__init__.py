"""Taking speculation out of the command line that starts vLLM, and nothing else.

What is beyond the command cannot be seen: a model that brings its own speculation from a hub, or
what an image or a script does with the words that it gets.
"""

from __future__ import annotations

from specwatch.stripping.arguments import Arguments, arguments
from specwatch.stripping.config_file import ReadFile
from specwatch.stripping.strip import Stripped, strip

__all__ = ["Arguments", "ReadFile", "Stripped", "arguments", "strip"]
