"""From an engine's metrics page to closed one-minute windows."""
