package exactlyonce.encode;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/** XXH3 with 64 bits and a seed: what exactly_once/digest.py computes with the package xxhash. A test holds one to the other. */
final class Xxh3 {
    private static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    private static final VarHandle INT = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
    private static final byte[] SECRET = java.util.HexFormat.of()
            .parseHex(
                    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee0"
                        + "3590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e0"
                        + "4bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d1"
                        + "7ad031ce45cb3a8f95160428afd7fbcabb4b407e");
    private static final long P1 = 0x9E3779B185EBCA87L,
            P2 = 0xC2B2AE3D27D4EB4FL,
            P3 = 0x165667B19E3779F9L,
            P4 = 0x85EBCA77C2B2AE63L,
            P5 = 0x27D4EB2F165667C5L;
    private static final long Q1 = 0x9E3779B1L, Q2 = 0x85EBCA77L, Q3 = 0xC2B2AE3DL;

    private Xxh3() {}

    private static long l(byte[] b, int i) {
        return (long) LONG.get(b, i);
    }

    private static long u(byte[] b, int i) {
        return (int) INT.get(b, i) & 0xffffffffL;
    }

    private static long fold(long a, long b) {
        long high = Math.multiplyHigh(a, b) + ((a >> 63) & b) + ((b >> 63) & a);
        return a * b ^ high;
    }

    private static long mix(byte[] in, int i, int s, long seed) {
        return fold(l(in, i) ^ l(SECRET, s) + seed, l(in, i + 8) ^ l(SECRET, s + 8) - seed);
    }

    private static long avalanche(long h) {
        h ^= h >>> 37;
        h *= 0x165667919E3779F9L;
        return h ^ h >>> 32;
    }

    private static long avalanche64(long h) {
        h ^= h >>> 33;
        h *= P2;
        h ^= h >>> 29;
        h *= P3;
        return h ^ h >>> 32;
    }

    /** Returns the hash of {@code in}. */
    static long hash(byte[] in, long seed) {
        int n = in.length;
        if (n <= 16)
            return n > 8
                    ? from9(in, n, seed)
                    : n >= 4
                            ? from4(in, n, seed)
                            : n > 0 ? from1(in, n, seed) : avalanche64(seed ^ l(SECRET, 56) ^ l(SECRET, 64));
        if (n <= 128) return to128(in, n, seed);
        return n <= 240 ? to240(in, n, seed) : large(in, n, seed);
    }

    private static long from1(byte[] in, int n, long seed) {
        long all = (in[0] & 0xffL) << 16 | (in[n >> 1] & 0xffL) << 24 | in[n - 1] & 0xffL | (long) n << 8;
        return avalanche64(all ^ (u(SECRET, 0) ^ u(SECRET, 4)) + seed);
    }

    private static long from4(byte[] in, int n, long seed) {
        seed ^= (Integer.reverseBytes((int) seed) & 0xffffffffL) << 32;
        long h = u(in, n - 4) + (u(in, 0) << 32) ^ (l(SECRET, 8) ^ l(SECRET, 16)) - seed;
        h ^= Long.rotateLeft(h, 49) ^ Long.rotateLeft(h, 24);
        h *= 0x9FB21C651E98DF25L;
        h ^= (h >>> 35) + n;
        h *= 0x9FB21C651E98DF25L;
        return h ^ h >>> 28;
    }

    private static long from9(byte[] in, int n, long seed) {
        long low = l(in, 0) ^ (l(SECRET, 24) ^ l(SECRET, 32)) + seed;
        long high = l(in, n - 8) ^ (l(SECRET, 40) ^ l(SECRET, 48)) - seed;
        return avalanche(n + Long.reverseBytes(low) + high + fold(low, high));
    }

    private static long to128(byte[] in, int n, long seed) {
        long acc = n * P1;
        if (n > 32) {
            if (n > 64) {
                if (n > 96) acc += mix(in, 48, 96, seed) + mix(in, n - 64, 112, seed);
                acc += mix(in, 32, 64, seed) + mix(in, n - 48, 80, seed);
            }
            acc += mix(in, 16, 32, seed) + mix(in, n - 32, 48, seed);
        }
        return avalanche(acc + mix(in, 0, 0, seed) + mix(in, n - 16, 16, seed));
    }

    private static long to240(byte[] in, int n, long seed) {
        long acc = n * P1;
        for (int i = 0; i < 8; i++) acc += mix(in, 16 * i, 16 * i, seed);
        acc = avalanche(acc);
        for (int i = 8; i < n / 16; i++) acc += mix(in, 16 * i, 16 * (i - 8) + 3, seed);
        return avalanche(acc + mix(in, n - 16, 136 - 17, seed));
    }

    private static long large(byte[] in, int n, long seed) {
        byte[] s = new byte[192];
        for (int i = 0; i < 192; i += 16) {
            LONG.set(s, i, l(SECRET, i) + seed);
            LONG.set(s, i + 8, l(SECRET, i + 8) - seed);
        }
        long[] acc = {Q3, P1, P2, P3, P4, Q2, P5, Q1};
        int blocks = (n - 1) / 1024;
        for (int b = 0; b < blocks; b++) {
            for (int k = 0; k < 16; k++) stripe(acc, in, b * 1024 + k * 64, s, k * 8);
            for (int i = 0; i < 8; i++) acc[i] = (acc[i] ^ acc[i] >>> 47 ^ l(s, 128 + 8 * i)) * Q1;
        }
        for (int k = 0; k < (n - 1 - 1024 * blocks) / 64; k++) stripe(acc, in, blocks * 1024 + k * 64, s, k * 8);
        stripe(acc, in, n - 64, s, 192 - 64 - 7);
        long h = n * P1;
        for (int i = 0; i < 4; i++) h += fold(acc[2 * i] ^ l(s, 11 + 16 * i), acc[2 * i + 1] ^ l(s, 19 + 16 * i));
        return avalanche(h);
    }

    private static void stripe(long[] acc, byte[] in, int at, byte[] s, int key) {
        for (int i = 0; i < 8; i++) {
            long v = l(in, at + 8 * i), k = v ^ l(s, key + 8 * i);
            acc[i ^ 1] += v;
            acc[i] += (k & 0xffffffffL) * (k >>> 32);
        }
    }
}
