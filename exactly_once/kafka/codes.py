"""The meaning of Kafka's error codes for a part, by number: the number is the same in every client.

An unlisted code is one that a retry does not change: a person has to look. So an error that nobody thought of stops a
stream with the broker's own sentence, and is not restarted for ever. ``make jar`` writes the same sets in Java, for the
tasks: ``java/exactlyonce/errors/Codes.java``.
"""

from __future__ import annotations

#: Errors that may pass by themselves, so that the next start can succeed unchanged.
MAY_PASS = frozenset(
    {
        1,  # OFFSET_OUT_OF_RANGE: a reader's, which begins again
        2,  # CORRUPT_MESSAGE: damaged on its way
        5,  # LEADER_NOT_AVAILABLE
        6,  # NOT_LEADER_OR_FOLLOWER
        7,  # REQUEST_TIMED_OUT
        8,  # BROKER_NOT_AVAILABLE
        9,  # REPLICA_NOT_AVAILABLE
        13,  # NETWORK_EXCEPTION
        14,  # COORDINATOR_LOAD_IN_PROGRESS
        15,  # COORDINATOR_NOT_AVAILABLE
        16,  # NOT_COORDINATOR
        19,  # NOT_ENOUGH_REPLICAS
        20,  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
        41,  # NOT_CONTROLLER
        51,  # CONCURRENT_TRANSACTIONS
        56,  # KAFKA_STORAGE_ERROR: a replica's disk; another replica takes over
        74,  # FENCED_LEADER_EPOCH
        75,  # UNKNOWN_LEADER_EPOCH
        78,  # OFFSET_NOT_AVAILABLE
        88,  # UNSTABLE_OFFSET_COMMIT
        89,  # THROTTLING_QUOTA_EXCEEDED
        100,  # UNKNOWN_TOPIC_ID: a broker that has not heard of the topic yet
        103,  # INCONSISTENT_TOPIC_ID
    }
)

#: Errors fatal to one transaction, and not to the next one: the next start has new transactions.
OF_THE_TRANSACTION = frozenset(
    {
        45,  # OUT_OF_ORDER_SEQUENCE_NUMBER
        48,  # INVALID_TXN_STATE
        49,  # INVALID_PRODUCER_ID_MAPPING
        52,  # TRANSACTION_COORDINATOR_FENCED
        59,  # UNKNOWN_PRODUCER_ID
        105,  # TRANSACTIONAL_ID_NOT_FOUND
        120,  # TRANSACTION_ABORTABLE
    }
)

#: Errors of a producer whose transactional id another one has initialised.
FENCED = frozenset(
    {
        47,  # INVALID_PRODUCER_EPOCH
        90,  # PRODUCER_FENCED
    }
)

#: Errors of a transaction that somebody else has ended.
ENDED = FENCED | {
    48,  # INVALID_TXN_STATE
    49,  # INVALID_PRODUCER_ID_MAPPING
}

#: Errors that the brokers find in a record.
OF_THE_RECORD = frozenset(
    {
        17,  # INVALID_TOPIC_EXCEPTION: a topic of the brokers' own, or a name that they do not allow
        32,  # INVALID_TIMESTAMP: too far from the brokers' clock for the topic
        87,  # INVALID_RECORD: no key for a compacted topic; a schema that the broker checks
    }
)
