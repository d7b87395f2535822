"""A simulated vLLM: known truth for tests, benchmarks and the demo.

The engine is pure and runs in virtual time; only the server knows the clock and the network.
"""
