"""Finding targets while the daemon runs."""
