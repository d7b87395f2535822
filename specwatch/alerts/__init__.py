"""Alertmanager: which alerts fire, and how each Alertmanager is told of them."""
