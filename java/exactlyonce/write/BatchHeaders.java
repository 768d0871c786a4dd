package exactlyonce.write;

import exactlyonce.ticket.Ticket;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;

/**
 * The headers by which a record names its batch, behind those of its row; exactly_once/protocol/batch_headers.py has the same. A dead letter has
 * none of them: it names its batch by headers of its own.
 */
final class BatchHeaders {
    private static final Header[] NONE = {};

    private final Header[] pair; // empty: the option is off

    BatchHeaders(Ticket ticket) {
        pair = ticket.batchHeaders()
                ? new Header[] {
                    header("__exactly_once.sink", ticket.sink()),
                    header("__exactly_once.batch", String.valueOf(ticket.batch()))
                }
                : NONE;
    }

    /** Whether records have them. */
    boolean are() {
        return pair.length != 0;
    }

    /** Returns the headers of the record of a row with {@code own} headers; null for none. */
    List<Header> behind(Header[] own) {
        if (pair.length == 0) return own == null ? null : Arrays.asList(own);
        if (own == null) return Arrays.asList(pair);
        Header[] all = Arrays.copyOf(own, own.length + pair.length);
        System.arraycopy(pair, 0, all, own.length, pair.length);
        return Arrays.asList(all);
    }

    private static Header header(String name, String text) {
        return new RecordHeader(name, text.getBytes(StandardCharsets.UTF_8));
    }
}
