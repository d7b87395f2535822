"""What a person runs to decide: load tests, advice, the simulated vLLM, backfill from Prometheus.

It stands on the daemon's lower rooms; the daemon imports nothing of it.
"""
