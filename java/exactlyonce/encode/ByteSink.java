package exactlyonce.encode;

import java.io.ByteArrayOutputStream;

/** Bytes that grow, and the numbers that Avro and Protobuf write: seven bits to a byte, or little end first. */
public final class ByteSink extends ByteArrayOutputStream {
    /** Each task writes its rows one after the other, on one thread. */
    private static final ThreadLocal<ByteSink> OF_THREAD = ThreadLocal.withInitial(ByteSink::new);

    /** Bytes beyond which a thread keeps no buffer: else each would keep its largest row. */
    private static final int KEPT = 1 << 20;

    /** Returns the one of this thread, which is empty. */
    public static ByteSink empty() {
        if (OF_THREAD.get().buf.length > KEPT) OF_THREAD.remove();
        ByteSink mine = OF_THREAD.get();
        mine.reset();
        return mine;
    }

    public void bytes(byte[] all) {
        write(all, 0, all.length);
    }

    /** Seven bits to a byte, the low ones first; a negative number takes ten bytes. */
    void varint(long number) {
        long left = number;
        while ((left & ~0x7FL) != 0) {
            write((int) (left & 0x7F | 0x80));
            left >>>= 7;
        }
        write((int) left);
    }

    /** A varint in which small negative numbers are short, too. */
    void zigzag(long number) {
        varint((number << 1) ^ (number >> 63));
    }

    void fixed32(int number) {
        for (int shift = 0; shift < 32; shift += 8) write(number >>> shift);
    }

    void fixed64(long number) {
        for (int shift = 0; shift < 64; shift += 8) write((int) (number >>> shift));
    }
}
