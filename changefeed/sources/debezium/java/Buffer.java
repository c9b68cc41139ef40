package changefeed;

import java.util.Arrays;

/** Bytes that grow; numbers are little-endian. */
final class Buffer {
    byte[] data = new byte[1 << 16];
    int size;

    private void room(int count) {
        if (size + count > data.length) {
            data = Arrays.copyOf(data, Math.max(size + count, (int) Math.min(2L * data.length, 0x7ffffff0L)));
        }
    }

    void align() {
        int more = -size & 7;
        room(more);
        for (int i = 0; i < more; i++) {
            data[size++] = 0;
        }
    }

    void int8(int value) {
        room(1);
        data[size++] = (byte) value;
    }

    void int32(int value) {
        room(4);
        data[size] = (byte) value;
        data[size + 1] = (byte) (value >>> 8);
        data[size + 2] = (byte) (value >>> 16);
        data[size + 3] = (byte) (value >>> 24);
        size += 4;
    }

    void int64(long value) {
        int32((int) value);
        int32((int) (value >>> 32));
    }

    void bytes(byte[] more, int start, int count) {
        room(count);
        System.arraycopy(more, start, data, size, count);
        size += count;
    }
}
