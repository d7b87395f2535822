"""Simulated servers that the real scraper, judge and guard look after in virtual time."""
