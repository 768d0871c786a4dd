"""The doctor: verdicts on this host and a checkpoint, on a cluster and on rights; and the probes."""
