"""For people: how a sink stands, what may be done about it, and by which command."""
