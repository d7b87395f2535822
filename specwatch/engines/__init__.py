"""The engines: the only room with the metric names of an engine."""
