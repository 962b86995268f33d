"""What survives."""
