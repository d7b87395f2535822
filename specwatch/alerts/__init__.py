"""Alertmanager: which alerts fire, and how they are sent to each Alertmanager."""
