"""Files for other programs, generated: pure functions from settings to text."""
