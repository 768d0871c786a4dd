"""The steps of the protocol: claim, write, decide, complete, recover."""
