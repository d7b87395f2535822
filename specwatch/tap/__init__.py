"""The tap: acceptance and latency by sampling temperature, from the traffic of an OpenAI server.

vLLM loads it with ``--middleware specwatch.tap.Tap``; ``specwatch tap proxy`` is the same as a
reverse proxy. It imports only what vLLM installs anyway.
"""

from specwatch.tap.middleware import Tap

__all__ = ["Tap"]
