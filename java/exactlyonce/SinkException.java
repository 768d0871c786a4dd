package exactlyonce;

/**
 * An error of the sink. Its message is all that a user reads: code, what happened, what is safe, what to do.
 *
 * <p>PySpark shows an IllegalArgumentException by its message alone, without a Java trace.
 */
public final class SinkException extends IllegalArgumentException {
    private static final long serialVersionUID = 1;

    private static final String WAY_OUT = ". What to do: ";

    /** What a failure of a task leaves true under exactly_once; {@code Ticket.told} knows the exceptions. */
    public static final String NOTHING_VISIBLE = "None of this batch is visible to a read_committed reader";

    /** What is true of a task whose execution is over: its batch may be decided, with the rows of another attempt. */
    public static final String NOTHING_OF_TASK = "No row of this task is visible to a read_committed reader";

    private final String what;
    private final String safe;
    private final String wayOut;
    private boolean ofRow;

    /** Wraps a text that Python made. */
    public SinkException(String text) {
        super(text);
        what = safe = wayOut = "";
    }

    /** Of a task. */
    public SinkException(String code, String what, String wayOut) {
        this(code, what, NOTHING_VISIBLE, wayOut, null);
    }

    public SinkException(String code, String what, String safe, String wayOut, Throwable cause) {
        super(code + ": " + line(what) + ". " + safe + WAY_OUT + line(wayOut) + ".", cause);
        this.what = line(what);
        this.safe = safe;
        this.wayOut = line(wayOut);
    }

    private SinkException(String text, SinkException of, String safe) {
        super(text, of.getCause());
        setStackTrace(of.getStackTrace());
        what = of.what;
        this.safe = safe;
        wayOut = of.wayOut;
    }

    /** Says of this error that the row itself is to blame: where the sink has a dead letter topic, the row goes there. */
    public SinkException ofRow() {
        ofRow = true;
        return this;
    }

    public boolean isOfRow() {
        return ofRow;
    }

    /** Whether it is that of a task whose execution is over. */
    public boolean isOver() {
        return safe == NOTHING_OF_TASK;
    }

    /** Returns what happened; "" of a text that Python made, as for {@link #wayOut}. */
    public String what() {
        return what;
    }

    public String wayOut() {
        return wayOut;
    }

    /** Returns the same error with other words on what is safe; one whose text is Python's keeps it. */
    public SinkException withSafe(String other) {
        return new SinkException(getMessage().replace(". " + safe + WAY_OUT, ". " + other + WAY_OUT), this, other);
    }

    /** One line, without what a terminal would obey: Python finds the whole sentence in a trace by that. */
    private static String line(String text) {
        String one = text.strip().replaceAll("\\s+", " ").replaceAll("[\\p{C}\\p{Z}&&[^ ]]", "\uFFFD");
        return one.endsWith(".") ? one.substring(0, one.length() - 1) : one;
    }
}
