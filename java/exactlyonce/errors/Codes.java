package exactlyonce.errors;

import java.util.Set;

/** Kafka's error codes, from exactly_once/kafka/codes.py, which names each: written by make jar. */
final class Codes {
    /** Those after which a new attempt, with transactions of its own, may succeed. */
    static final Set<Integer> MAY_PASS = Set.of(
            1, 2, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 41, 45, 47, 48, 49, 51, 52, 56, 59, 74, 75, 78, 88, 89, 90,
            100, 103, 105, 120);

    /** Those of a transaction that somebody else has ended. */
    static final Set<Integer> ENDED = Set.of(47, 48, 49, 90);

    private Codes() {}
}
