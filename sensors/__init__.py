"""What is this code location's own about the sensors of its streams."""
