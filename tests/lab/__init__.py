"""The real things that tests need: a CPU vLLM, tiny models, a machine with systemd, traffic."""
