package exactlyonce;

import java.util.concurrent.ConcurrentHashMap;

/**
 * Closes the coordinator of a query when the query has ended, however it did: when its thread has.
 *
 * <p>query.stop() may interrupt Spark's own call of abort; what that left open is rolled back then.
 */
final class Queries {
    private static final ConcurrentHashMap<String, Coordinator> RUNNING = new ConcurrentHashMap<>();

    private Queries() {}

    /**
     * Returns the coordinator of a run; its first call begins to wait for the end of {@code thread}.
     *
     * <p>A run whose coordinator is gone must end: a claim of another one would take the sink back from whoever has claimed it meanwhile.
     */
    static Coordinator coordinator(String run, Thread thread) {
        return RUNNING.computeIfAbsent(run, begins -> {
            Coordinator found = Bridge.coordinator();
            Thread watcher = new Thread(() -> await(run, thread, found), "exactly-once-end-of-" + run);
            watcher.setDaemon(true);
            watcher.start();
            return found;
        });
    }

    /** Whether a run has a coordinator, which has the options by then. */
    static boolean isRunning(String run) {
        return RUNNING.containsKey(run);
    }

    private static void await(String run, Thread thread, Coordinator coordinator) {
        try {
            thread.join();
            Bridge.close(coordinator, run);
        } catch (InterruptedException e) {
            // nobody interrupts it
        } finally {
            RUNNING.remove(run);
        }
    }
}
