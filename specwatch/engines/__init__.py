"""What is known of each engine: the only room with an engine's metric names."""
