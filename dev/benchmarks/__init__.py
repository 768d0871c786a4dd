"""Speed as ratios: the exactly-once sink beside other systems, in turn on the same machine and input."""
