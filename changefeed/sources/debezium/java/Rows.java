package changefeed;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.Struct;

/** Rows of one table in one batch, written column by column. */
final class Rows {
    private final Table table;
    private final List after = new ArrayList();
    private final List before = new ArrayList();
    private final Buffer places = new Buffer();
    private final Buffer operations = new Buffer();
    private boolean hasBefore;
    private boolean hasAfter;

    Rows(Table table) {
        this.table = table;
    }

    void add(int place, char operation, Struct old, Struct row) {
        places.int32(place);
        operations.int8(operation);
        before.add(old);
        after.add(row);
        hasBefore |= old != null;
        hasAfter |= row != null;
    }

    int size() {
        return after.size();
    }

    /** Append all to {@code blob}; returns where each part lies. No row after (before): no columns of it. */
    Map write(Buffer blob, String unavailable) {
        List parts = new ArrayList();
        part(parts, blob, places);
        part(parts, blob, operations);
        presence(parts, blob, before);
        List unsent = new ArrayList();
        for (int i = 0; hasAfter && i < table.columns.length; i++) {
            column(parts, blob, after, table.columns[i], unavailable, i, unsent);
        }
        for (int i = 0; hasBefore && i < table.columns.length; i++) {
            column(parts, blob, before, table.columns[i], null, i, unsent);
        }
        Map told = new LinkedHashMap();
        told.put("table", Integer.valueOf(table.number));
        told.put("rows", Integer.valueOf(after.size()));
        told.put("parts", parts);
        told.put("after", Boolean.valueOf(hasAfter));
        told.put("before", Boolean.valueOf(hasBefore));
        told.put("unsent", unsent);
        return told;
    }

    private static void part(List parts, Buffer blob, Buffer content) {
        blob.align();
        parts.add(new int[] {blob.size, content.size});
        blob.bytes(content.data, 0, content.size);
    }

    private static void presence(List parts, Buffer blob, List rows) {
        Buffer there = new Buffer();
        for (int i = 0; i < rows.size(); i++) {
            there.int8(rows.get(i) == null ? 0 : 1);
        }
        part(parts, blob, there);
    }

    /** One column: which values are there, then the values; a text has its ends first. */
    private static void column(
            List parts, Buffer blob, List rows, Field field, String unavailable, int number,
            List unsent) {
        Schema schema = field.schema();
        char kind = Values.kind(schema);
        int count = rows.size();
        Buffer there = new Buffer();
        Buffer values = new Buffer();
        Buffer ends = kind == 't' ? new Buffer() : null;
        if (ends != null) {
            ends.int32(0);
        }
        // get() puts the default in the place of null.
        boolean defaulted = schema.defaultValue() != null;
        for (int i = 0; i < count; i++) {
            Struct row = (Struct) rows.get(i);
            // By the field, where its name must not be looked up for each value.
            Object value = row == null ? null
                : defaulted ? row.getWithoutDefault(field.name()) : row.get(field);
            if (value == null) {
                there.int8(0);
                if (kind == 't') {
                    ends.int32(values.size);
                } else if (kind == 'z') {
                    values.int8(0);
                } else {
                    values.int64(0);
                }
                continue;
            }
            if (kind == 't') {
                if (unavailable != null && Values.is(value, unavailable)) {
                    unsent.add(new int[] {number, i});
                    there.int8(0);
                    ends.int32(values.size);
                    continue;
                }
                byte[] text = Values.text(schema, value).getBytes(StandardCharsets.UTF_8);
                values.bytes(text, 0, text.length);
                ends.int32(values.size);
            } else if (kind == 'z') {
                values.int8(((Boolean) value).booleanValue() ? 1 : 0);
            } else if (kind == 'i') {
                values.int64(((Number) value).longValue());
            } else {
                values.int64(Double.doubleToRawLongBits(((Number) value).doubleValue()));
            }
            there.int8(1);
        }
        part(parts, blob, there);
        if (ends != null) {
            part(parts, blob, ends);
        }
        part(parts, blob, values);
    }
}
