"""The operator's tools: the state of a sink, the permitted actions, and the commands for them."""
