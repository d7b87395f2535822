"""Broken product lines, and whether the fast tests notice."""
