package exactlyonce;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Closes the coordinator of a query when the query has ended, however it did: when its thread has.
 *
 * <p>query.stop() may interrupt Spark's own call of abort; what that left open is rolled back then.
 */
final class Queries {
    private static final ConcurrentHashMap<String, Thread> WATCHED = new ConcurrentHashMap<>();

    private Queries() {}

    /** Waits for the end of {@code thread} beside it; once for each run. */
    static void watch(String run, Thread thread) {
        if (WATCHED.putIfAbsent(run, thread) != null) return;
        Thread watcher = new Thread(() -> await(run, thread), "exactly-once-end-of-" + run);
        watcher.setDaemon(true);
        watcher.start();
    }

    private static void await(String run, Thread thread) {
        try {
            thread.join();
            Bridge.call(Map.of("call", "close", "run", run));
        } catch (InterruptedException | RuntimeException e) {
            // the coordinator is gone, too: the next start rolls back what is open
        } finally {
            WATCHED.remove(run);
        }
    }
}
