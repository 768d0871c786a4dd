package exactlyonce.border;

import exactlyonce.Coordinator;
import exactlyonce.SinkException;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The coordinator as a process of its own, for drivers without a Python of ours: Spark Connect's server, Scala, Java, SQL.
 *
 * <p>Each request is a line with a number and JSON, and so is its answer. The process ends when its standard input does, so with this JVM,
 * however that ends.
 */
public final class Child implements Coordinator {
    private static Child only;

    private final String python;
    private final BufferedWriter to;
    private final ConcurrentHashMap<Long, CompletableFuture<String>> asked = new ConcurrentHashMap<>();
    private final AtomicLong numbers = new AtomicLong();
    private volatile boolean answered;
    private volatile boolean ended;

    private Child() throws IOException {
        python = python();
        ProcessBuilder builder = new ProcessBuilder(List.of(python, "-u", "-m", "exactly_once.spark.serve"));
        Process process = builder.redirectError(ProcessBuilder.Redirect.INHERIT).start();
        to = process.outputWriter(StandardCharsets.UTF_8);
        BufferedReader from = process.inputReader(StandardCharsets.UTF_8);
        Thread reader = new Thread(() -> read(from), "exactly-once-coordinator");
        reader.setDaemon(true);
        reader.start();
    }

    /** Returns this JVM's only child; starts it when there is none. */
    public static synchronized Child get() {
        if (only == null || only.ended) {
            try {
                only = new Child();
            } catch (IOException e) {
                throw missing(e);
            }
        }
        return only;
    }

    @Override
    public String call(String request) {
        long number = numbers.incrementAndGet();
        CompletableFuture<String> answer = new CompletableFuture<>();
        asked.put(number, answer);
        try {
            synchronized (to) {
                to.write(number + " " + request + "\n");
                to.flush();
            }
        } catch (IOException e) {
            throw over();
        }
        if (ended) answer.completeExceptionally(over()); // it ended before it was asked
        return waitFor(answer);
    }

    /** Waits through interrupts: query.stop() waits for a commit that has begun. */
    private static String waitFor(CompletableFuture<String> answer) {
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return answer.get();
                } catch (InterruptedException e) {
                    interrupted = true;
                } catch (ExecutionException e) {
                    throw e.getCause() instanceof SinkException known ? known : gone(e.getCause());
                }
            }
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
        }
    }

    private void read(BufferedReader from) {
        try {
            for (String line = from.readLine(); line != null; line = from.readLine()) {
                answered = true;
                int space = line.indexOf(' ');
                CompletableFuture<String> answer = asked.remove(Long.parseLong(line.substring(0, space)));
                if (answer != null) answer.complete(line.substring(space + 1));
            }
        } catch (IOException e) {
            // ended, as below
        }
        ended = true;
        asked.values().forEach(answer -> answer.completeExceptionally(over()));
    }

    private SinkException over() {
        return answered ? gone(new IOException("its process, a child of this JVM, has ended")) : missing(null);
    }

    /** Returns the error that the process which runs the protocol is away. */
    public static SinkException gone(Throwable e) {
        return new SinkException(
                "EO-COORDINATOR",
                "the Python process that runs the sink's protocol does not answer (" + e + ")",
                "The next start commits what is decided; nothing else is visible",
                "Start the stream again; in PySpark, call exactly_once.register(spark) first. If the error repeats,"
                        + " read the log of the driver's Python to find out what ended that process",
                e);
    }

    private static SinkException missing(Throwable cause) {
        return new SinkException(
                "EO-COORDINATOR-MISSING",
                "the sink's protocol runs in Python, and `" + python() + " -m exactly_once.spark.serve` "
                        + (cause == null ? "has ended" : "cannot be started (" + cause.getMessage() + ")"),
                "The next start commits what is decided; nothing else is visible",
                "Install pyspark-kafka-exactly-once for that Python on the driver's host, or set EXACTLY_ONCE_PYTHON"
                        + " to one that has it. In PySpark, exactly_once.register(spark) uses the driver's own Python",
                cause);
    }

    private static String python() {
        Map<String, String> environment = System.getenv();
        for (String name : List.of("EXACTLY_ONCE_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")) {
            String found = environment.get(name);
            if (found != null && !found.isEmpty()) return found;
        }
        return "python3";
    }
}
