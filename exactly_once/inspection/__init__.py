"""The state of a sink from outside: owner, open transactions, processes, progress. It writes nothing to Kafka;
``processes`` can also end a frozen driver, or let it go on.
"""
