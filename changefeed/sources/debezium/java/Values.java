package changefeed;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.time.OffsetTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.time.format.DateTimeFormatterBuilder;
import java.time.temporal.ChronoField;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.Struct;

/** Values of Debezium as numbers, or as texts of the change log's form. */
final class Values {
    private static final char[] DIGITS = "0123456789abcdef".toCharArray();
    private static final DateTimeFormatter MOMENT = new DateTimeFormatterBuilder()
        .appendPattern("uuuu-MM-dd'T'HH:mm:ss").appendFraction(ChronoField.MICRO_OF_SECOND, 0, 6, true)
        .toFormatter();
    private static final DateTimeFormatter TIME = new DateTimeFormatterBuilder()
        .appendPattern("HH:mm:ss").appendFraction(ChronoField.MICRO_OF_SECOND, 0, 6, true)
        .toFormatter();

    private Values() {
    }

    /** How values travel: {@code i} whole numbers, {@code z} booleans, {@code d} floating point numbers, {@code t} text. */
    static char kind(Schema schema) {
        switch (schema.type()) {
            case BOOLEAN:
                return 'z';
            case INT8: case INT16: case INT32: case INT64:
                return isKafkas(schema) ? 't' : 'i';
            case FLOAT32: case FLOAT64:
                return 'd';
            default:
                return 't';
        }
    }

    /** Kafka's own types of time: their values are objects. */
    private static boolean isKafkas(Schema schema) {
        return schema.name() != null && schema.name().startsWith("org.apache.kafka.connect.data.");
    }

    /** The mark of a value that Debezium does not have. */
    static boolean is(Object value, String unavailable) {
        if (value instanceof String) {
            return unavailable.equals(value);
        }
        byte[] bytes = bytes(value);
        return bytes != null
            && java.util.Arrays.equals(bytes, unavailable.getBytes(StandardCharsets.UTF_8));
    }

    private static byte[] bytes(Object value) {
        if (value instanceof byte[]) {
            return (byte[]) value;
        }
        if (value instanceof ByteBuffer) {
            byte[] bytes = new byte[((ByteBuffer) value).remaining()];
            ByteBuffer copy = (ByteBuffer) ((ByteBuffer) value).duplicate();
            copy.get(bytes);
            return bytes;
        }
        return null;
    }

    static String text(Schema schema, Object value) {
        if (value instanceof BigDecimal) {
            return ((BigDecimal) value).toPlainString();
        }
        String name = schema.name() == null ? "" : schema.name();
        byte[] bytes = bytes(value);
        if (bytes != null) {
            return hex(name.equals("io.debezium.data.Bits") ? bits(schema, bytes) : bytes, 0);
        }
        if (value instanceof String) {
            return string(name, (String) value);
        }
        if (value instanceof java.util.Date) {
            return MOMENT.format(((java.util.Date) value).toInstant().atOffset(ZoneOffset.UTC));
        }
        if (value instanceof Struct) {
            String special = struct(name, (Struct) value);
            if (special != null) {
                return special;
            }
        }
        try {
            return Door.JSON.writeValueAsString(json(schema, value));
        } catch (java.io.IOException failure) {
            throw new IllegalStateException(failure);
        }
    }

    private static String string(String name, String text) {
        if (name.equals("io.debezium.time.ZonedTimestamp")) {
            String quick = utc(text);
            if (quick != null) {
                return quick;
            }
            OffsetDateTime moment = OffsetDateTime.parse(text);
            return MOMENT.format(moment.withOffsetSameInstant(ZoneOffset.UTC)) + "Z";
        }
        if (name.equals("io.debezium.time.ZonedTime")) {
            OffsetTime time = OffsetTime.parse(text);
            String offset = time.getOffset().getTotalSeconds() == 0 ? "+00" : time.getOffset().getId();
            return TIME.format(time) + (offset.endsWith(":00") ? offset.substring(0, 3) : offset);
        }
        if (name.equals("io.debezium.data.Json")) {
            return text.indexOf('\n') < 0 && text.indexOf('\r') < 0
                ? text : text.replace('\n', ' ').replace('\r', ' ');
        }
        return text;
    }

    /**
     * A moment that is in UTC, of a year with four digits, without zeros at the end of its fraction
     * and without digits behind the microsecond; null of any other.
     */
    private static String utc(String text) {
        int last = text.length() - 1;
        if (last < 19 || last > 29 || text.charAt(last) != 'Z' || text.charAt(4) != '-'
                || text.charAt(10) != 'T' || text.charAt(16) != ':' || text.charAt(0) == '-') {
            return null;
        }
        if (last == 19) {
            return text;
        }
        if (text.charAt(19) != '.') {
            return null;
        }
        int end = Math.min(last, 26);
        while (text.charAt(end - 1) == '0') {
            end--;
        }
        if (text.charAt(end - 1) == '.') {
            end--;
        }
        return end == last ? text : text.substring(0, end).concat("Z");
    }

    /** Bits as a number, most significant byte first, where Debezium has the least one first. */
    private static byte[] bits(Schema schema, byte[] little) {
        int length = little.length;
        String wanted = schema.parameters() == null ? null : (String) schema.parameters().get("length");
        if (wanted != null && Integer.parseInt(wanted) < 65536) {
            length = (Integer.parseInt(wanted) + 7) / 8;
        }
        byte[] big = new byte[length];
        for (int i = 0; i < Math.min(length, little.length); i++) {
            big[length - 1 - i] = little[i];
        }
        return big;
    }

    private static String hex(byte[] bytes, int zeros) {
        char[] text = new char[2 + 2 * bytes.length];
        text[0] = '\\';
        text[1] = 'x';
        for (int i = 0; i < bytes.length; i++) {
            text[2 + 2 * i] = DIGITS[(bytes[i] >> 4) & 15];
            text[3 + 2 * i] = DIGITS[bytes[i] & 15];
        }
        return new String(text);
    }

    private static String struct(String name, Struct value) {
        if (name.equals("io.debezium.data.VariableScaleDecimal")) {
            BigInteger unscaled = new BigInteger(value.getBytes("value"));
            return new BigDecimal(unscaled, value.getInt32("scale").intValue()).toPlainString();
        }
        if (name.startsWith("io.debezium.data.geometry.")) {
            byte[] wkb = value.getBytes("wkb");
            Integer number = value.schema().field("srid") == null ? null : value.getInt32("srid");
            int srid = number == null ? 0 : number.intValue();
            byte[] whole = new byte[4 + wkb.length];
            for (int i = 0; i < 4; i++) {
                whole[i] = (byte) (srid >>> (8 * i));
            }
            System.arraycopy(wkb, 0, whole, 4, wkb.length);
            return hex(whole, 0);
        }
        return null;
    }

    /** A value inside another one, as Jackson writes it. */
    private static Object json(Schema schema, Object value) {
        if (value == null || value instanceof Boolean || value instanceof BigDecimal) {
            return value;
        }
        if (value instanceof Number) {
            String moment = moment(schema, ((Number) value).longValue());
            return moment == null ? value : moment;
        }
        if (value instanceof List) {
            List found = new ArrayList();
            for (Iterator each = ((List) value).iterator(); each.hasNext();) {
                found.add(json(schema.valueSchema(), each.next()));
            }
            return found;
        }
        if (value instanceof Map) {
            Map found = new LinkedHashMap();
            for (Iterator each = ((Map) value).entrySet().iterator(); each.hasNext();) {
                Map.Entry entry = (Map.Entry) each.next();
                found.put(String.valueOf(entry.getKey()), json(schema.valueSchema(), entry.getValue()));
            }
            return found;
        }
        if (value instanceof Struct && struct(String.valueOf(schema.name()), (Struct) value) == null) {
            Map found = new LinkedHashMap();
            List fields = ((Struct) value).schema().fields();
            for (int i = 0; i < fields.size(); i++) {
                Field field = (Field) fields.get(i);
                found.put(field.name(), json(field.schema(), ((Struct) value).get(field)));
            }
            return found;
        }
        return text(schema, value);
    }

    /** A moment inside an array; null where the number is just a number. */
    private static String moment(Schema schema, long number) {
        String name = schema.name() == null ? "" : schema.name();
        if (name.equals("io.debezium.time.Date")) {
            return LocalDate.ofEpochDay(number).toString();
        }
        if (name.equals("io.debezium.time.Time") || name.equals("io.debezium.time.MicroTime")) {
            long micros = name.endsWith(".Time") ? number * 1000 : number;
            return TIME.format(LocalTime.ofNanoOfDay(micros * 1000));
        }
        if (name.equals("io.debezium.time.Timestamp") || name.equals("io.debezium.time.MicroTimestamp")) {
            long micros = name.endsWith(".Timestamp") ? number * 1000 : number;
            Instant moment = Instant.EPOCH.plus(micros, ChronoUnit.MICROS);
            return MOMENT.format(moment.atOffset(ZoneOffset.UTC));
        }
        return null;
    }
}
