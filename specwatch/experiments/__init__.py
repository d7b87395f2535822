"""What a probe or a bench measured on purpose, and what follows from it."""
