package exactlyonce;

/**
 * An error of the sink. Its message is all that a user reads: code, what happened, what is safe, what to do.
 *
 * <p>PySpark shows an IllegalArgumentException by its message alone, without a Java trace.
 */
public final class SinkException extends IllegalArgumentException {
    private static final long serialVersionUID = 1;

    /** What every failure of a task leaves true. */
    static final String NOTHING_VISIBLE = "None of this batch is visible to a read_committed reader";

    /** Wraps a text that Python made. */
    SinkException(String text) {
        super(text);
    }

    /** Of a task, whose rows nobody sees. */
    SinkException(String code, String what, String wayOut) {
        this(code, what, NOTHING_VISIBLE, wayOut, null);
    }

    SinkException(String code, String what, String safe, String wayOut, Throwable cause) {
        super(code + ": " + line(what) + ". " + safe + ". What to do: " + line(wayOut) + ".", cause);
    }

    /** One line, without what a terminal would obey: Python finds the whole sentence in a trace by that. */
    private static String line(String text) {
        String one = text.strip().replaceAll("\\s+", " ").replaceAll("\\p{Cntrl}", "\uFFFD");
        return one.endsWith(".") ? one.substring(0, one.length() - 1) : one;
    }
}
