"""The database: windows, roll-ups, verdicts, guard records, experiments, and their upkeep."""
