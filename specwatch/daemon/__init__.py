"""The long-running services of the daemon, each with its own state, and their wiring."""
