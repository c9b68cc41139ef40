package changefeed;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;

/** A table in one shape, as Debezium's envelope has it. */
final class Table {
    final int number;
    final Field[] columns;
    /** Of the envelope; null where it has none. A value is read by its field: a name is looked up. */
    final Field before;
    final Field after;
    final Field source;
    final Field operation;

    Table(int number, Schema envelope) {
        this.number = number;
        before = envelope.field("before");
        after = envelope.field("after");
        source = envelope.field("source");
        operation = envelope.field("op");
        List fields = envelope.field("after").schema().fields();
        columns = (Field[]) fields.toArray(new Field[fields.size()]);
    }

    /** What the other side must know of it. */
    Map told(Schema key) {
        List shapes = new ArrayList();
        for (int i = 0; i < columns.length; i++) {
            Schema schema = columns[i].schema();
            Map shape = new LinkedHashMap();
            shape.put("name", columns[i].name());
            shape.put("type", schema.type().getName());
            shape.put("semantic", schema.name() == null ? "" : schema.name());
            shape.put("kind", String.valueOf(Values.kind(schema)));
            shape.put("optional", Boolean.valueOf(schema.isOptional()));
            shape.put("default", Boolean.valueOf(schema.defaultValue() != null));
            if (schema.parameters() != null) {
                shape.put("parameters", schema.parameters());
            }
            if (schema.type() == Schema.Type.ARRAY) {
                Schema element = schema.valueSchema();
                Map inner = new LinkedHashMap();
                inner.put("type", element.type().getName());
                inner.put("semantic", element.name() == null ? "" : element.name());
                if (element.parameters() != null) {
                    inner.put("parameters", element.parameters());
                }
                shape.put("element", inner);
            }
            shapes.add(shape);
        }
        List names = new ArrayList();
        if (key != null) {
            for (int i = 0; i < key.fields().size(); i++) {
                names.add(((Field) key.fields().get(i)).name());
            }
        }
        Map told = new LinkedHashMap();
        told.put("table", Integer.valueOf(number));
        told.put("columns", shapes);
        told.put("key", names);
        return told;
    }
}
