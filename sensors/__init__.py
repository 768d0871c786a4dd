"""The sensors of this code location's streams: their intervals, their policies, and whom they tell."""
