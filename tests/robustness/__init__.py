"""Campaigns against what comes from outside: seeded, short in ``make test``, long on demand."""
