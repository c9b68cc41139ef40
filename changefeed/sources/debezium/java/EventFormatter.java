package io.debezium.pipeline.source.spi;

import java.util.Map;
import org.apache.kafka.connect.data.Struct;

/**
 * In the place of Debezium's class of this name, which writes a text of every event, with the values
 * of its key, for a metric of JMX. Nobody can read that here, and it takes a fifth of the time in
 * which the engine makes a record.
 */
class EventFormatter {
    public EventFormatter sourcePosition(Map position) {
        return this;
    }

    public EventFormatter key(Object key) {
        return this;
    }

    public EventFormatter value(Struct value) {
        return this;
    }

    public String toString() {
        return "";
    }
}
