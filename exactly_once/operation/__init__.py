"""What an operator may do to a sink: each operation once, for the terminal, Dagster, and Python."""
