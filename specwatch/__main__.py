"""``python -m specwatch``."""

from specwatch.cli import main

main()
