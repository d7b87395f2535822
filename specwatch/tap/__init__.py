"""The tap: acceptance and latency by sampling temperature, read off an OpenAI server's traffic.

vLLM loads it with ``--middleware specwatch.tap.Tap``; ``specwatch tap proxy`` is the same as a
reverse proxy. It imports nothing that vLLM does not bring.
"""

from specwatch.tap.middleware import Tap

__all__ = ["Tap"]
