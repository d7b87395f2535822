"""specwatch: does speculative decoding pay on your vLLM server?"""

from specwatch_tap import __version__

__all__ = ["__version__"]
