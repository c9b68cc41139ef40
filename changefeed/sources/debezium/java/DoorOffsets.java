package changefeed;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import org.apache.kafka.connect.runtime.WorkerConfig;
import org.apache.kafka.connect.storage.OffsetBackingStore;
import org.apache.kafka.connect.util.Callback;

/**
 * Where Debezium goes on: at the offset that the change log's frontier holds.
 *
 * <p>Nothing is stored here. What the engine commits is in the change log already.
 */
public class DoorOffsets implements OffsetBackingStore {
    private static List saved;

    /** A partition and its offset, or null where there is none yet. */
    static void begin(List offset) {
        saved = offset;
    }

    public void configure(WorkerConfig config) {
    }

    public void start() {
    }

    public void stop() {
    }

    public Future get(Collection keys) {
        Map found = new HashMap();
        for (Iterator each = keys.iterator(); each.hasNext();) {
            ByteBuffer key = (ByteBuffer) each.next();
            ByteBuffer value = null;
            try {
                if (saved != null && partition(key).equals(saved.get(0))) {
                    value = ByteBuffer.wrap(Door.JSON.writeValueAsBytes(saved.get(1)));
                }
            } catch (java.io.IOException failure) {
                throw new IllegalStateException(failure);
            }
            found.put(key, value);
        }
        return CompletableFuture.completedFuture(found);
    }

    /** The partition in a key: the engine's name and the partition, as JSON. */
    private static Object partition(ByteBuffer key) throws java.io.IOException {
        byte[] text = new byte[key.remaining()];
        ByteBuffer copy = (ByteBuffer) key.duplicate();
        copy.get(text);
        List parts = (List) Door.JSON.readValue(new String(text, StandardCharsets.UTF_8), List.class);
        return parts.get(1);
    }

    public Future set(Map values, Callback callback) {
        if (callback != null) {
            callback.onCompletion(null, null);
        }
        return CompletableFuture.completedFuture(null);
    }

    public Set connectorPartitions(String connectorName) {
        return Collections.EMPTY_SET;
    }
}
