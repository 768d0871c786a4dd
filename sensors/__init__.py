"""What the sensors of this code location take for normal, and how they restart a stream."""
