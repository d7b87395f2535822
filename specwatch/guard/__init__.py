"""The guard's decisions: what to do next, from what is stored and what is seen. No effects."""
