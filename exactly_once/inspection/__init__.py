"""The state of a sink from outside: owner, open transactions, processes, progress. It changes nothing."""
