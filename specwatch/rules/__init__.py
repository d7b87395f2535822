"""Rules judged on windows: metrics, evidence, verdicts. No clock, no I/O."""
