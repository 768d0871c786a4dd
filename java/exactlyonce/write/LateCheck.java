package exactlyonce.write;

import exactlyonce.producer.Cluster;
import exactlyonce.producer.TransactionalProducer;
import exactlyonce.ticket.Ticket;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.locks.LockSupport;

/**
 * Asks the commit log whether a task is too late, beside the flush of its last records. The answer counts only if the question came behind the
 * beginning of the transaction, with all its partitions: a driver that ends the execution later finds the transaction open, and aborts it.
 */
final class LateCheck {
    /** Pause between two looks whether the transaction has begun: well below a round trip. */
    private static final long PAUSE_NANOS = 200_000;

    private final CompletableFuture<Boolean> answer;
    private volatile boolean flushed;

    /** Begins, when all rows are sent. */
    LateCheck(Ticket ticket, TransactionalProducer transaction) {
        answer = Opening.beside(() -> asked(ticket, transaction));
    }

    /** Says that the flush is over: what has not begun by now has failed, or does not tell. */
    void flushed() {
        flushed = true;
    }

    /**
     * Waits for the answer, behind {@link #flushed}.
     *
     * @throws Exception what {@link Cluster#checkInTime} does
     */
    void end() throws Exception {
        try {
            answer.get();
        } catch (ExecutionException e) {
            throw e.getCause() instanceof Exception told ? told : e;
        }
    }

    private boolean asked(Ticket ticket, TransactionalProducer transaction) throws Exception {
        while (!flushed && !transaction.isKnownToCoordinator()) LockSupport.parkNanos(PAUSE_NANOS);
        Cluster.of(ticket).checkInTime(ticket);
        return true;
    }
}
