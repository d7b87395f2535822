"""Pure rooms: no clock, no I/O; time is an argument."""
