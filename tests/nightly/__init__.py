"""Statistics and scale: what takes too long for each change. ``make nightly`` runs it."""
