import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.apicurio.registry.utils.converter.AvroConverter;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.embedded.Connect;
import io.debezium.transforms.ExtractNewRecordState;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;

/**
 * Runs SQL on PostgreSQL, statement by statement, and prints what Debezium's connector makes of each.
 *
 * <p>Reads a plan (JSON, the only argument), and prints JSON lines: a statement with its events by connector and the
 * rows of every table afterwards. A message in the log of the database (pg_logical_emit_message) marks the end of a
 * statement's events, and is not part of the recording.
 */
public final class Recorder {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String MARKER = "recorder-";
    private static final long PATIENCE = 120_000; // milliseconds
    private static final int LONG = 60; // characters; a longer text is written once
    private static final long QUIET = 3_000; // milliseconds without an event, where no marker says that all arrived

    private final JsonNode plan;
    private final PrintStream out;
    private final Connection database;
    private final Converters converters;
    private final List<Source> sources = new ArrayList<>();
    private final Numbered texts = new Numbered();
    private long marker;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // the output has JSON lines alone
        new Recorder(JSON.readTree(Path.of(arguments[0]).toFile()), out).record();
        out.flush();
        System.exit(0); // connectors of one process cannot be closed one by one: they share what reports their lineage
    }

    private Recorder(JsonNode plan, PrintStream out) throws Exception {
        this.plan = plan;
        this.out = out;
        database = DriverManager.getConnection(plan.get("jdbc").asText());
        converters = new Converters(plan.path("registry").asText(""), plan.path("converter"));
    }

    private void record() throws Exception {
        run("CREATE PUBLICATION " + plan.get("publication").asText() + " FOR ALL TABLES");
        run(plan.get("setup").asText());
        ExecutorService pool = Executors.newCachedThreadPool();
        for (Map.Entry<String, JsonNode> connector : plan.get("connectors").properties()) {
            Source source = new Source(connector.getKey());
            sources.add(source);
            pool.execute(source.engine(connector.getValue()));
            long deadline = System.currentTimeMillis() + PATIENCE;
            while (source.seen() == 0) { // a slot has no messages from before it; two at once wait for each other
                expire(deadline);
                mark();
                Thread.sleep(500);
            }
        }
        settle(mark());
        print("snapshot", "");
        for (JsonNode statement : plan.get("statements")) {
            run(statement.get("sql").asText());
            settle(mark());
            if (statement.path("quiet").asBoolean()) {
                quiet();
            }
            if (statement.path("heartbeat").asBoolean()) {
                heartbeat();
            }
            print(statement.get("name").asText(), statement.get("sql").asText());
        }
    }

    private void run(String sql) throws Exception {
        try (Statement statement = database.createStatement()) {
            statement.execute(sql);
        }
    }

    private long mark() throws Exception {
        run("SELECT pg_logical_emit_message(false, '" + MARKER + ++marker + "', '')");
        return marker;
    }

    private void settle(long mark) throws Exception {
        long deadline = System.currentTimeMillis() + PATIENCE;
        while (!sources.stream().allMatch(source -> source.seen() >= mark)) {
            expire(deadline);
            Thread.sleep(20);
        }
    }

    /** Wait until no event came for a while: an incremental snapshot has no marker at its end. */
    private void quiet() throws Exception {
        int before = -1;
        while (before != sources.stream().mapToInt(Source::count).sum()) {
            before = sources.stream().mapToInt(Source::count).sum();
            Thread.sleep(QUIET);
        }
    }

    private void heartbeat() throws Exception {
        long deadline = System.currentTimeMillis() + PATIENCE;
        sources.forEach(Source::awaitHeartbeat);
        while (!sources.stream().allMatch(Source::hasHeartbeat)) {
            expire(deadline);
            Thread.sleep(20);
        }
    }

    private void expire(long deadline) {
        for (Source source : sources) {
            if (source.failure != null) {
                throw new IllegalStateException(source.name + ": " + source.failure);
            }
        }
        if (System.currentTimeMillis() > deadline) {
            throw new IllegalStateException("the events did not arrive within " + PATIENCE + " ms");
        }
    }

    private void print(String name, String sql) throws Exception {
        ObjectNode line = JSON.createObjectNode();
        line.put("statement", name).put("sql", sql);
        ObjectNode tables = line.putObject("tables");
        for (JsonNode table : plan.get("tables")) {
            tables.set(table.asText(), table(table.asText()));
        }
        ObjectNode events = line.putObject("events");
        for (Source source : sources) {
            source.drain(events);
        }
        line.set("schemas", converters.schemas.fresh());
        line.set("headers", converters.headers.fresh());
        line.set("texts", texts.fresh());
        out.println(JSON.writeValueAsString(line));
        out.flush();
    }

    /** The columns (name, type) and the rows of a table. A cell is a text, null, or the number of a long text. */
    private ObjectNode table(String name) throws Exception {
        ObjectNode found = JSON.createObjectNode();
        ArrayNode columns = found.putArray("columns");
        List<String> casts = new ArrayList<>();
        try (Statement statement = database.createStatement();
                ResultSet column =
                        statement.executeQuery(
                                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid ="
                                        + " to_regclass('"
                                        + name
                                        + "') AND attnum > 0 AND NOT attisdropped ORDER BY attnum")) {
            while (column.next()) {
                columns.addArray().add(column.getString(1)).add(column.getString(2));
                casts.add('"' + column.getString(1) + "\"::text");
            }
        }
        ArrayNode rows = found.putArray("rows");
        String sql = "SELECT " + String.join(", ", casts) + " FROM " + name + " ORDER BY 1";
        try (Statement statement = database.createStatement(); ResultSet row = statement.executeQuery(sql)) {
            while (row.next()) {
                ArrayNode cells = rows.addArray();
                for (int i = 1; i <= casts.size(); i++) {
                    String text = row.getString(i);
                    if (text != null && text.length() > LONG) {
                        cells.add(texts.number(text));
                    } else {
                        cells.add(text);
                    }
                }
            }
        }
        return found;
    }

    /** One connector, with the events that were not printed yet. */
    private final class Source {
        private final String name;
        private final List<SourceRecord> records = new ArrayList<>();
        private ExtractNewRecordState<SourceRecord> flattened;
        private DebeziumEngine<ChangeEvent<SourceRecord, SourceRecord>> engine;
        private long seen;
        private int count;
        private boolean awaited;
        private boolean avro;
        private volatile String failure;

        private Source(String name) {
            this.name = name;
        }

        private Runnable engine(JsonNode connector) {
            avro = connector.path("avro").asBoolean();
            Properties settings = new Properties();
            connector.get("config").properties().forEach(e -> settings.setProperty(e.getKey(), e.getValue().asText()));
            if (connector.get("flattened").isObject()) {
                Map<String, String> of = new HashMap<>();
                connector.get("flattened").properties().forEach(e -> of.put(e.getKey(), e.getValue().asText()));
                flattened = new ExtractNewRecordState<>();
                flattened.configure(of);
            }
            engine =
                    DebeziumEngine.create(Connect.class)
                            .using(settings)
                            .notifying(this::take)
                            .using((success, message, error) -> failure = message + (error == null ? "" : " " + error))
                            .build();
            return engine;
        }

        private synchronized void take(ChangeEvent<SourceRecord, SourceRecord> event) {
            SourceRecord record = event.value();
            String prefix = record.topic().endsWith(".message") ? ((Struct) record.key()).getString("prefix") : "";
            if (prefix.startsWith(MARKER)) {
                seen = Math.max(seen, Long.parseLong(prefix.substring(MARKER.length())));
            } else if (record.topic().startsWith("__debezium-heartbeat")) {
                if (awaited) {
                    awaited = false;
                    records.add(record);
                }
            } else {
                records.add(record);
                count++;
            }
        }

        private synchronized long seen() {
            return seen;
        }

        private synchronized int count() {
            return count;
        }

        private synchronized void awaitHeartbeat() {
            awaited = true;
        }

        private synchronized boolean hasHeartbeat() {
            return !awaited;
        }

        private synchronized void drain(ObjectNode events) throws Exception {
            ArrayNode all = events.putArray(name);
            for (SourceRecord record : records) {
                all.add(converters.event(record, avro));
            }
            if (flattened != null) {
                ArrayNode flat = events.putArray(name + "_flattened");
                for (SourceRecord record : records) {
                    SourceRecord transformed = flattened.apply(record);
                    if (transformed != null) {
                        flat.add(converters.event(transformed, false));
                    }
                }
            }
            records.clear();
        }
    }

    /** A record in every format, and the schemas that were new. */
    private static final class Converters {
        private final JsonConverter[] plain = new JsonConverter[2];
        private final JsonConverter[] described = new JsonConverter[2];
        private final AvroConverter<?>[] avro = new AvroConverter<?>[2];
        private final SimpleHeaderConverter header = new SimpleHeaderConverter();
        private final Numbered schemas = new Numbered();
        private final Numbered headers = new Numbered();

        private Converters(String registry, JsonNode converter) {
            Map<String, Object> common = new HashMap<>();
            converter.properties().forEach(e -> common.put(e.getKey(), e.getValue().asText()));
            for (int part = 0; part < 2; part++) {
                plain[part] = new JsonConverter();
                plain[part].configure(with(common, "schemas.enable", "false"), part == 0);
                described[part] = new JsonConverter();
                described[part].configure(with(common, "schemas.enable", "true"), part == 0);
                if (!registry.isEmpty()) {
                    avro[part] = new AvroConverter<>();
                    Map<String, Object> settings = with(common, "apicurio.registry.url", registry);
                    settings.put("apicurio.registry.auto-register", "true");
                    settings.put("apicurio.registry.as-confluent", "true");
                    settings.put("apicurio.registry.use-id", "contentId");
                    settings.put("apicurio.registry.headers.enabled", "false");
                    settings.put(
                            "apicurio.registry.artifact-resolver-strategy",
                            "io.apicurio.registry.serde.strategy.TopicIdStrategy");
                    avro[part].configure(settings, part == 0);
                }
            }
        }

        private static Map<String, Object> with(Map<String, Object> common, String name, String value) {
            Map<String, Object> settings = new HashMap<>(common);
            settings.put(name, value);
            return settings;
        }

        private ObjectNode event(SourceRecord record, boolean inAvro) throws Exception {
            ObjectNode event = JSON.createObjectNode();
            event.put("topic", record.topic());
            event.set("key", part(0, record.topic(), record.keySchema(), record.key(), inAvro));
            event.set("value", part(1, record.topic(), record.valueSchema(), record.value(), inAvro));
            ArrayNode all = JSON.createArrayNode();
            for (Header each : record.headers()) {
                byte[] text = header.fromConnectHeader(record.topic(), each.key(), each.schema(), each.value());
                all.addArray().add(each.key()).add(new String(text, StandardCharsets.UTF_8));
            }
            event.put("headers", headers.number(JSON.writeValueAsString(all)));
            return event;
        }

        /** JSON, the number of its JSON schema, and Avro in base64; null if there are no bytes. */
        private ObjectNode part(int part, String topic, Schema schema, Object value, boolean inAvro)
                throws Exception {
            if (value == null) {
                return null;
            }
            String json = new String(plain[part].fromConnectData(topic, schema, value), StandardCharsets.UTF_8);
            String whole = new String(described[part].fromConnectData(topic, schema, value), StandardCharsets.UTF_8);
            String head = "{\"schema\":", middle = ",\"payload\":" + json + "}";
            if (!whole.startsWith(head) || !whole.endsWith(middle)) {
                throw new IllegalStateException("JSON with schemas is not schema and JSON: " + whole);
            }
            String text = whole.substring(head.length(), whole.length() - middle.length());
            ObjectNode node = JSON.createObjectNode();
            node.put("json", json).put("schema", schemas.number(text));
            if (inAvro && avro[part] != null) {
                node.put("avro", Base64.getEncoder().encodeToString(avro[part].fromConnectData(topic, schema, value)));
            }
            return node;
        }
    }

    /** Texts that are written once: by number, in the order in which they were found. */
    private static final class Numbered {
        private final Map<String, Integer> numbers = new LinkedHashMap<>();
        private int printed;

        private int number(String text) {
            return numbers.computeIfAbsent(text, found -> numbers.size());
        }

        /** The texts that no line before had. */
        private ArrayNode fresh() {
            ArrayNode fresh = JSON.createArrayNode();
            numbers.keySet().stream().skip(printed).forEach(fresh::add);
            printed = numbers.size();
            return fresh;
        }
    }
}
