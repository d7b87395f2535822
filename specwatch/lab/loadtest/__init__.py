"""Load on purpose: clients, probe, bench, calibration, and what follows from them."""
