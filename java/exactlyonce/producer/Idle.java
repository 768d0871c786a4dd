package exactlyonce.producer;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Iterator;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.LongConsumer;
import java.util.function.Predicate;

/**
 * What tasks use one after the other, and what closes by itself when no task has come for a time: a client whose cluster is gone looks for
 * it as long as it is open, and warns once a second.
 */
final class Idle<T> {
    /** Longer than the pauses of most triggers: a new producer costs a part 20 ms and more. Shorter than brokers keep idle connections. */
    private static final long CLOSE_AFTER_MS = TimeUnit.MINUTES.toMillis(5);

    private static final ScheduledExecutorService TIMER = Executors.newSingleThreadScheduledExecutor(work -> {
        Thread thread = new Thread(work, "exactly-once-idle");
        thread.setDaemon(true);
        return thread;
    });

    private record Left<T>(T what, long sinceNs) {}

    private final Deque<Left<T>> left = new ArrayDeque<>();
    private final Consumer<T> close;

    /** @param close runs beside the tasks */
    Idle(Consumer<T> close) {
        this(close, CLOSE_AFTER_MS);
    }

    Idle(Consumer<T> close, long afterMs) {
        this.close = one -> Producers.beside(() -> close.accept(one));
        regularly(this::closeAll, afterMs);
    }

    /** Has {@code close} close, now and again, what was not used for as many ns as it gets. */
    static void regularly(LongConsumer close) {
        regularly(close, CLOSE_AFTER_MS);
    }

    private static void regularly(LongConsumer close, long afterMs) {
        long afterNs = TimeUnit.MILLISECONDS.toNanos(afterMs);
        TIMER.scheduleWithFixedDelay(() -> close.accept(afterNs), afterMs, afterMs / 5, TimeUnit.MILLISECONDS);
    }

    /** Takes the first that is {@code best}, else any that {@code fits}; null when there is none. */
    synchronized T take(Predicate<T> fits, Predicate<T> best) {
        Left<T> found = null;
        for (Left<T> one : left) if (fits.test(one.what) && (found == null || best.test(one.what))) found = one;
        left.remove(found);
        return found == null ? null : found.what;
    }

    /** Takes back what a task has used. */
    synchronized void leave(T one) {
        left.addLast(new Left<>(one, System.nanoTime()));
    }

    /** Closes all that no task uses. */
    void closeAll() {
        closeAll(0);
    }

    private synchronized void closeAll(long unusedNs) {
        long now = System.nanoTime();
        for (Iterator<Left<T>> i = left.iterator(); i.hasNext(); ) {
            Left<T> one = i.next();
            if (now - one.sinceNs < unusedNs) continue;
            i.remove();
            close.accept(one.what);
        }
    }
}
