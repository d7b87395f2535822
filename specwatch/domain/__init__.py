"""The vocabulary and the mathematics of the decision: plain values, no clock, no I/O."""
