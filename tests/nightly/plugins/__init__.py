"""What pytest does in a checkout."""
