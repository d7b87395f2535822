"""specwatch: does speculative decoding pay on your vLLM server?"""

__version__ = "0.1.0"
