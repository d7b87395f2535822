"""What specwatch costs, measured: ``python -m tests.benchmarks``. Nothing here is a test."""
