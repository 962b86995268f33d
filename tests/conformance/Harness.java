import static scala.jdk.javaapi.CollectionConverters.asJava;
import static scala.jdk.javaapi.CollectionConverters.asScala;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.NullNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Aggregator;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Initializer;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.KeyValueMapper;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.VersionedRecord;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.core.config.Configurator;
import org.apache.spark.SparkConf;
import org.apache.spark.sql.catalyst.AliasIdentifier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.analysis.Analyzer;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry$;
import org.apache.spark.sql.catalyst.analysis.TableFunctionRegistry$;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.catalog.InMemoryCatalog;
import org.apache.spark.sql.catalyst.catalog.SessionCatalog;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BindReferences$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.package$;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate;
import org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions;
import org.apache.spark.sql.catalyst.parser.CatalystSqlParser$;
import org.apache.spark.sql.catalyst.plans.Inner$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.JoinHint;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * A topology's plan, run by real Kafka Streams: a case per line in, what each table emitted and holds per line out.
 *
 * A row is a Catalyst row of all columns, the key's first, and its expressions are evaluated by Spark's own Catalyst,
 * without a session: the plan means here exactly what it means to Spark, and Kafka decides when it is computed.
 */
public class Harness {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws IOException {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // the answers alone go to standard output
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.writeValueAsString(run(JSON.readTree(line))));
        }
    }

    static ObjectNode run(JsonNode asked) {
        Plan plan = new Plan(asked.get("topology"));
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "conformance");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "none:1");
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, RowSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, RowSerde.class);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(
            StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG,
            BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers.class);
        settings.put("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", 0L); // not once a second by the clock
        settings.put(StreamsConfig.STATE_DIR_CONFIG, System.getProperty("state"));
        ObjectNode answer = JSON.createObjectNode();
        ObjectNode emitted = answer.putObject("emitted"), state = answer.putObject("state");
        RowSerde serde = new RowSerde();
        try (TopologyTestDriver driver = new TopologyTestDriver(plan.builder.build(), settings)) {
            Map<String, TestInputTopic<InternalRow, InternalRow>> topics = new HashMap<>();
            plan.sources.keySet().forEach(topic -> topics.put(topic, driver.createInputTopic(topic, serde, serde)));
            Map<String, TestOutputTopic<InternalRow, InternalRow>> outputs = new LinkedHashMap<>();
            for (String table : plan.tables.keySet()) {
                emitted.putArray(table);
                if (!plan.versioned.contains(table) && !plan.globals.containsKey(table)) {
                    outputs.put(table, driver.createOutputTopic(Plan.output(table), serde, serde));
                }
            }
            int step = 0;
            for (JsonNode record : asked.get("records")) {
                Source source = plan.sources.get(record.get("topic").asText());
                InternalRow key = source.row(source.key(), record.get("key"));
                if (plan.streamed.contains(record.get("topic").asText())) {
                    key = Rows.keyOrNull(key); // a stream's record without a key names its world all the same
                }
                InternalRow row = record.get("value").isNull() ? null : source.row(record);
                topics.get(record.get("topic").asText()).pipeInput(key, row, record.get("timestamp").asLong());
                if (plan.versioned.contains(record.get("topic").asText())) {
                    // A versioned table also sends on what came too late to be its newest: it is asked what is.
                    String table = record.get("topic").asText();
                    VersionedRecord<InternalRow> newest =
                        driver.<InternalRow, InternalRow>getVersionedKeyValueStore(table).get(key);
                    ArrayNode told = ((ArrayNode) emitted.get(table)).addArray().add(step);
                    tell(told, plan.tables.get(table), key, newest == null ? null : newest.value(),
                        newest == null ? 0 : newest.timestamp());
                }
                for (String table : outputs.keySet()) {
                    for (var sent : outputs.get(table).readRecordsToList()) {
                        ArrayNode told = ((ArrayNode) emitted.get(table)).addArray().add(step);
                        tell(told, plan.tables.get(table), sent.key(), sent.value(), sent.timestamp());
                    }
                }
                step++;
            }
            outputs.keySet().forEach(table -> {
                Flow flow = plan.tables.get(table);
                if (flow.stream() != null) return;
                ArrayNode rows = state.putArray(table);
                driver.<InternalRow, InternalRow>getTimestampedKeyValueStore(table).all()
                    .forEachRemaining(at -> tell(rows.addArray(), flow, at.key, at.value.value(), at.value.timestamp()));
            });
        }
        return answer;
    }

    /** Key, value columns or null, and timestamp. */
    static void tell(ArrayNode to, Flow flow, InternalRow key, InternalRow row, long timestamp) {
        ArrayNode keys = to.addArray();
        for (int i = 0; i < flow.key().size(); i++) {
            keys.add(plain(key == null ? null : key.get(i, null)));
        }
        if (row == null) {
            to.addNull();
        } else {
            ArrayNode values = to.addArray();
            for (int i = flow.key().size(); i < row.numFields(); i++) {
                values.add(plain(row.get(i, null)));
            }
        }
        to.add(timestamp);
    }

    static JsonNode plain(Object cell) {
        return JSON.valueToTree(cell instanceof UTF8String text ? text.toString() : cell);
    }

    /** A row as JSON that says the type of every cell; a cell may be a row. */
    public static class RowSerde implements Serde<InternalRow>, Serializer<InternalRow>, Deserializer<InternalRow> {
        @Override
        public Serializer<InternalRow> serializer() {
            return this;
        }

        @Override
        public Deserializer<InternalRow> deserializer() {
            return this;
        }

        @Override
        public void configure(Map<String, ?> settings, boolean isKey) {}

        @Override
        public void close() {}

        @Override
        public byte[] serialize(String topic, InternalRow row) {
            try {
                return row == null ? null : JSON.writeValueAsBytes(told(row));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public InternalRow deserialize(String topic, byte[] bytes) {
            try {
                return bytes == null ? null : row(JSON.readTree(bytes));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        private static ArrayNode told(InternalRow row) {
            ArrayNode cells = JSON.createArrayNode();
            for (Object cell : Rows.cells(row)) {
                if (cell == null) {
                    cells.addNull();
                } else if (cell instanceof InternalRow inner) {
                    cells.add(told(inner));
                } else {
                    cells.add(cell.getClass().getSimpleName().charAt(0) + cell.toString());
                }
            }
            return cells;
        }

        private static InternalRow row(JsonNode cells) {
            Object[] row = new Object[cells.size()];
            Arrays.setAll(row, i -> cells.get(i).isArray() ? row(cells.get(i)) : cell(cells.get(i)));
            return new GenericInternalRow(row);
        }

        private static Object cell(JsonNode cell) {
            if (cell.isNull()) return null;
            String text = cell.asText().substring(1);
            return switch (cell.asText().charAt(0)) {
                case 'I' -> Integer.valueOf(text);
                case 'L' -> Long.valueOf(text);
                case 'D' -> Double.valueOf(text);
                case 'B' -> Boolean.valueOf(text);
                case 'U' -> UTF8String.fromString(text);
                default -> throw new IllegalArgumentException("say in RowSerde how to read " + cell);
            };
        }
    }
}

/** A topic's columns. */
record Source(List<Attribute> key, List<Attribute> value) {
    Source(JsonNode consumed) {
        this(columns(consumed.get("key")), columns(consumed.get("value")));
    }

    List<String> names() {
        return key.stream().map(Attribute::name).toList();
    }

    List<Attribute> columns() {
        List<Attribute> all = new ArrayList<>(key);
        all.addAll(value);
        return all;
    }

    InternalRow row(JsonNode record) {
        return Rows.of(Rows.cells(row(key, record.get("key"))), Rows.cells(row(value, record.get("value"))));
    }

    InternalRow row(List<Attribute> columns, JsonNode cells) {
        return new GenericInternalRow(columns.stream().map(at -> cell(at.dataType(), cells.get(at.name()))).toArray());
    }

    private static List<Attribute> columns(JsonNode declared) {
        List<Attribute> columns = new ArrayList<>();
        for (JsonNode column : declared) {
            DataType type = CatalystSqlParser$.MODULE$.parseDataType(column.get("type").asText());
            columns.add(Catalyst.attribute(column.get("name").asText(), type));
        }
        return columns;
    }

    private static Object cell(DataType type, JsonNode cell) {
        if (cell == null || cell.isNull()) return null;
        if (type.equals(DataTypes.IntegerType)) return cell.asInt();
        if (type.equals(DataTypes.LongType)) return cell.asLong();
        if (type.equals(DataTypes.DoubleType)) return cell.asDouble();
        if (type.equals(DataTypes.BooleanType)) return cell.asBoolean();
        if (type.equals(DataTypes.StringType)) return UTF8String.fromString(cell.asText());
        throw new IllegalArgumentException("a column of a source is " + type.sql() + ": say in Harness how it is read");
    }
}

/** A node of the plan as Kafka Streams' table or stream of rows: all columns as Catalyst knows them, the key's first. */
record Flow(
    KTable<InternalRow, InternalRow> table,
    KStream<InternalRow, InternalRow> stream,
    List<String> key,
    List<Attribute> columns) {
    Flow(KTable<InternalRow, InternalRow> table, List<String> key, List<Attribute> columns) {
        this(table, null, key, columns);
    }

    Flow(KStream<InternalRow, InternalRow> stream, List<String> key, List<Attribute> columns) {
        this(null, stream, key, columns);
    }
}

/** The plan, node by node, in Kafka Streams' words. */
class Plan {
    final StreamsBuilder builder = new StreamsBuilder();
    final Map<String, Source> sources = new LinkedHashMap<>();
    final Map<String, Flow> tables = new LinkedHashMap<>();
    final Set<String> versioned = new HashSet<>();
    final Set<String> streamed = new HashSet<>();
    final Map<String, GlobalKTable<InternalRow, InternalRow>> globals = new HashMap<>();
    private final Map<String, KStream<InternalRow, InternalRow>> streams = new HashMap<>();

    Plan(JsonNode topology) {
        for (JsonNode source : topology.get("sources")) {
            sources.put(source.get("topic").asText(), new Source(source.get("consumed")));
            if (source.get("kind").asText().equals("stream")) {
                streamed.add(source.get("topic").asText());
            }
        }
        for (JsonNode join : topology.findParents("sent")) {
            if (join.get("sent").asBoolean()) {
                globals.put(join.get("right").get("table").asText(), null);
            }
        }
        for (JsonNode table : topology.get("tables")) {
            String name = table.get("name").asText();
            if (globals.containsKey(name)) {
                globals.put(name, builder.globalTable(name));
                tables.put(name, new Flow((KTable<InternalRow, InternalRow>) null, sources.get(name).names(), sources.get(name).columns()));
                continue;
            }
            JsonNode history = is(table.get("plan"), "latest") ? table.get("plan").get("history") : NullNode.instance;
            Flow flow = flow(table.get("plan"), history.isNumber() ? versioned(name, history.asLong()) : stored(name));
            tables.put(name, flow);
            if (history.isNumber()) {
                versioned.add(name);
            } else if (flow.stream() != null) {
                flow.stream().to(output(name));
            } else {
                flow.table().toStream().to(output(name));
            }
        }
    }

    private static boolean is(JsonNode node, String kind) {
        return node.get("is").asText().equals(kind);
    }

    static String output(String table) {
        return table + "-emitted";
    }

    private static Materialized<InternalRow, InternalRow, KeyValueStore<Bytes, byte[]>> stored(String name) {
        return Materialized.<InternalRow, InternalRow>as(Stores.inMemoryKeyValueStore(name))
            .withCachingDisabled().withLoggingDisabled();
    }

    @SuppressWarnings("unchecked") // Materialized names the kind of its store, and a versioned one fits as well
    private static Materialized<InternalRow, InternalRow, KeyValueStore<Bytes, byte[]>> versioned(String name, long history) {
        return (Materialized<InternalRow, InternalRow, KeyValueStore<Bytes, byte[]>>) (Materialized<?, ?, ?>)
            Materialized.<InternalRow, InternalRow>as(Stores.persistentVersionedKeyValueStore(name, Duration.ofMillis(history)))
                .withLoggingDisabled();
    }

    /** What is no table of its own: Kafka decides whether it needs a store. */
    private static Materialized<InternalRow, InternalRow, KeyValueStore<Bytes, byte[]>> view() {
        return Materialized.with(new Harness.RowSerde(), new Harness.RowSerde());
    }

    private Flow flow(JsonNode node) {
        return flow(node, view());
    }

    private Flow flow(JsonNode node, Materialized<InternalRow, InternalRow, KeyValueStore<Bytes, byte[]>> as) {
        return switch (node.get("is").asText()) {
            case "scan" -> tables.get(node.get("table").asText());
            case "records" -> records(node);
            case "union" -> union(node);
            case "latest" -> latest(node, as);
            case "select" -> select(node, as);
            case "join" -> isStream(node.get("left")) ? lookup(node) : join(node, as);
            case "streamjoin" -> streamJoin(node);
            case "window" -> window(node);
            case "aggregate" -> aggregate(node, as);
            default -> throw new IllegalArgumentException("say in Harness what this node is to Kafka: " + node);
        };
    }

    /** A global table is an ordinary one here: Kafka has no join of a table with a global one. */
    private Flow latest(JsonNode node, Materialized<InternalRow, InternalRow, KeyValueStore<Bytes, byte[]>> as) {
        if (node.get("source").get("is").asText().equals("records")) {
            String topic = topic(node.get("source"));
            return new Flow(builder.table(topic, as), sources.get(topic).names(), sources.get(topic).columns());
        }
        Flow source = flow(node.get("source"));
        return new Flow(source.stream().toTable(as), source.key(), source.columns());
    }

    private Flow records(JsonNode node) {
        String topic = topic(node);
        Source source = sources.get(topic);
        return new Flow(streams.computeIfAbsent(topic, builder::stream), source.names(), source.columns());
    }

    private static String topic(JsonNode records) {
        return records.get("source").get("table").asText().substring("_landing/".length());
    }

    private Flow union(JsonNode node) {
        Flow left = flow(node.get("left")), right = flow(node.get("right"));
        return new Flow(left.stream().merge(right.stream()), left.key(), left.columns());
    }

    private Flow select(JsonNode node, Materialized<InternalRow, InternalRow, KeyValueStore<Bytes, byte[]>> as) {
        Flow source = flow(node.get("source"));
        if (source.stream() != null) {
            return selectStream(node, source);
        }
        KTable<InternalRow, InternalRow> kept = source.table();
        if (!node.get("where").isNull()) {
            Projection where = Catalyst.project(List.of(node.get("where").asText()), List.of("where"), source.columns());
            kept = kept.filter((key, row) -> Boolean.TRUE.equals(Rows.cells(where.of(row))[0]));
        }
        Projection selected = Catalyst.project(texts(node), names(node), source.columns());
        return new Flow(kept.mapValues(selected::of, as), source.key(), selected.columns());
    }

    /** A record without a value has its key, and nulls; mapped, it stays without one. */
    private Flow selectStream(JsonNode node, Flow source) {
        KStream<InternalRow, InternalRow> kept = source.stream();
        int columns = source.columns().size();
        if (!node.get("where").isNull()) {
            Projection where = Catalyst.project(List.of(node.get("where").asText()), List.of("where"), source.columns());
            kept = kept.filter((key, row) ->
                Boolean.TRUE.equals(Rows.cells(where.of(row != null ? row : Rows.padded(key, columns)))[0]));
        }
        Projection selected = Catalyst.project(texts(node), names(node), source.columns());
        if (node.get("rekeyed").isNull()) {
            return new Flow(kept.mapValues(row -> row == null ? null : selected.of(row)), source.key(), selected.columns());
        }
        List<String> by = names(node.get("rekeyed"));
        Projection rekeyed = Catalyst.project(by, by, source.columns());
        return new Flow(
            kept.map((key, row) -> KeyValue.pair(
                Rows.keyOrNull(rekeyed.of(row != null ? row : Rows.padded(key, columns))),
                row == null ? null : selected.of(row))),
            by,
            selected.columns());
    }

    private Flow join(JsonNode node, Materialized<InternalRow, InternalRow, KeyValueStore<Bytes, byte[]>> as) {
        if (!node.get("drive").asText().equals("both")) {
            throw new IllegalArgumentException("Kafka has no join of tables that follows the left one alone: " + node);
        }
        Flow left = flow(node.get("left")), right = flow(node.get("right"));
        Projection selected = Catalyst.project(texts(node), names(node), left.columns(), right.columns());
        int keys = left.key().size();
        ValueJoiner<InternalRow, InternalRow, InternalRow> joiner = (one, other) -> {
            Object[] cells = Rows.cells(selected.of(Rows.joined(left, one, right, other)));
            System.arraycopy(Rows.cells(one != null ? one : other), 0, cells, 0, keys); // the key is never null
            return new GenericInternalRow(cells);
        };
        List<String> on = names(node.get("on"));
        String how = node.get("how").asText();
        KTable<InternalRow, InternalRow> one = left.table(), other = right.table();
        if (Catalyst.areColumns(on, left.key())) {
            return new Flow(switch (how) {
                case "inner" -> one.join(other, joiner, as);
                case "left" -> one.leftJoin(other, joiner, as);
                default -> one.outerJoin(other, joiner, as);
            }, left.key(), selected.columns());
        }
        Projection lookup = Catalyst.project(on, right.key(), left.columns());
        java.util.function.Function<InternalRow, InternalRow> foreign = row -> Rows.keyOrNull(lookup.of(row));
        return new Flow(
            how.equals("inner") ? one.join(other, foreign, joiner, as) : one.leftJoin(other, foreign, joiner, as),
            left.key(),
            selected.columns());
    }

    private boolean isStream(JsonNode node) {
        return switch (node.get("is").asText()) {
            case "records", "union", "streamjoin" -> true;
            case "select" -> isStream(node.get("source"));
            case "join" -> isStream(node.get("left"));
            default -> false;
        };
    }

    private Flow lookup(JsonNode node) {
        Flow left = flow(node.get("left")), right = flow(node.get("right"));
        Projection selected = Catalyst.project(texts(node), names(node), left.columns(), right.columns());
        ValueJoiner<InternalRow, InternalRow, InternalRow> joiner =
            (one, other) -> selected.of(Rows.joined(left, one, right, other));
        boolean inner = node.get("how").asText().equals("inner");
        KStream<InternalRow, InternalRow> one = left.stream();
        if (!node.get("sent").asBoolean()) {
            Harness.RowSerde serde = new Harness.RowSerde();
            Joined<InternalRow, InternalRow, InternalRow> joined = Joined.with(serde, serde, serde);
            if (node.get("grace").isNumber()) {
                joined = joined.withGracePeriod(Duration.ofMillis(node.get("grace").asLong()));
            }
            return new Flow(inner ? one.join(right.table(), joiner, joined) : one.leftJoin(right.table(), joiner, joined),
                left.key(), selected.columns());
        }
        GlobalKTable<InternalRow, InternalRow> other = globals.get(node.get("right").get("table").asText());
        Projection lookup = Catalyst.project(names(node.get("on")), right.key(), left.columns());
        KeyValueMapper<InternalRow, InternalRow, InternalRow> mapped =
            (key, row) -> row == null ? null : Rows.keyOrNull(lookup.of(row));
        return new Flow(inner ? one.join(other, mapped, joiner) : one.leftJoin(other, mapped, joiner),
            left.key(), selected.columns());
    }

    private Flow streamJoin(JsonNode node) {
        Flow left = flow(node.get("left")), right = flow(node.get("right"));
        Projection selected = Catalyst.project(texts(node), names(node), left.columns(), right.columns());
        int keys = left.key().size();
        ValueJoiner<InternalRow, InternalRow, InternalRow> joiner = (one, other) -> {
            Object[] cells = Rows.cells(selected.of(Rows.joined(left, one, right, other)));
            System.arraycopy(Rows.cells(one != null ? one : other), 0, cells, 0, keys); // the key is never null
            return new GenericInternalRow(cells);
        };
        long before = node.get("before").asLong(), after = node.get("after").asLong();
        JoinWindows windows = JoinWindows
            .ofTimeDifferenceAndGrace(
                Duration.ofMillis(Math.max(Math.abs(before), Math.abs(after))),
                Duration.ofMillis(node.get("grace").asLong()))
            .before(Duration.ofMillis(before)).after(Duration.ofMillis(after));
        KStream<InternalRow, InternalRow> one = left.stream(), other = right.stream();
        return new Flow(switch (node.get("how").asText()) {
            case "inner" -> one.join(other, joiner, windows);
            case "left" -> one.leftJoin(other, joiner, windows);
            default -> one.outerJoin(other, joiner, windows);
        }, left.key(), selected.columns());
    }

    /** As a stream of what each window is; a window's bounds are part of its key. */
    private Flow window(JsonNode node) {
        Flow source = flow(node.get("source"));
        List<String> by = names(node.get("by"));
        Projection group = Catalyst.project(by, by, source.columns());
        Aggregation aggregation = Catalyst.aggregate(texts(node), names(node), source.columns());
        Initializer<InternalRow> none = () -> Rows.of();
        Aggregator<InternalRow, InternalRow, InternalRow> add = (key, row, rows) -> Rows.with(rows, row);
        Duration size = Duration.ofMillis(node.get("size").asLong()), grace = Duration.ofMillis(node.get("grace").asLong());
        var groups = source.stream().filter((key, row) -> row != null).groupBy((key, row) -> Rows.keyOrNull(group.of(row)));
        Materialized<InternalRow, InternalRow, WindowStore<Bytes, byte[]>> as =
            Materialized.with(new Harness.RowSerde(), new Harness.RowSerde());
        KTable<Windowed<InternalRow>, InternalRow> windows = switch (node.get("kind").asText()) {
            case "sliding" -> groups.windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(size, grace)).aggregate(none, add, as);
            case "session" -> groups.windowedBy(SessionWindows.ofInactivityGapAndGrace(size, grace)).aggregate(
                none,
                add,
                (key, rows, others) -> Rows.of(Rows.cells(rows), Rows.cells(others)),
                Materialized.<InternalRow, InternalRow, SessionStore<Bytes, byte[]>>with(
                    new Harness.RowSerde(), new Harness.RowSerde()));
            default -> groups.windowedBy(
                TimeWindows.ofSizeAndGrace(size, grace).advanceBy(Duration.ofMillis(node.get("advance").asLong())))
                .aggregate(none, add, as);
        };
        if (node.get("suppressed").asBoolean()) {
            windows = windows.suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()));
        }
        List<String> key = new ArrayList<>(by);
        List<Attribute> columns = new ArrayList<>(group.columns());
        for (String bound : List.of("_window_start", "_window_end")) {
            key.add(bound);
            columns.add(Catalyst.attribute(bound, DataTypes.LongType));
        }
        columns.addAll(aggregation.columns());
        return new Flow(
            windows.toStream().map((at, rows) -> {
                InternalRow named = Rows.of(
                    Rows.cells(at.key()), new Object[] {at.window().start(), at.window().end()});
                return KeyValue.pair(
                    named, rows == null ? null : Rows.of(Rows.cells(named), Rows.cells(aggregation.of(rows))));
            }),
            key,
            columns);
    }

    /** The store of the group holds its rows, so that every aggregate can be subtracted from. */
    private Flow aggregate(JsonNode node, Materialized<InternalRow, InternalRow, KeyValueStore<Bytes, byte[]>> as) {
        Flow source = flow(node.get("source"));
        List<String> by = names(node.get("by")), names = names(node), texts = texts(node);
        Projection group = Catalyst.project(by, by, source.columns());
        Aggregation aggregation = Catalyst.aggregate(
            texts.subList(by.size(), texts.size()), names.subList(by.size(), names.size()), source.columns());
        List<Attribute> columns = new ArrayList<>(group.columns());
        columns.addAll(aggregation.columns());
        Initializer<InternalRow> none = () -> Rows.of();
        Aggregator<InternalRow, InternalRow, InternalRow> add = (key, row, rows) -> Rows.with(rows, row);
        Aggregator<InternalRow, InternalRow, InternalRow> subtract = (key, row, rows) -> Rows.without(rows, row);
        KTable<InternalRow, InternalRow> groups = source.stream() != null
            ? source.stream().filter((key, row) -> row != null).groupBy((key, row) -> Rows.keyOrNull(group.of(row)))
                .aggregate(none, add, view())
            : source.table().groupBy((key, row) -> KeyValue.pair(Rows.keyOrNull(group.of(row)), row))
                .aggregate(none, add, subtract, view());
        return new Flow(
            groups.mapValues((key, rows) -> Rows.of(Rows.cells(key), Rows.cells(aggregation.of(rows))), as), by, columns);
    }

    private static List<String> names(JsonNode node) {
        List<String> names = new ArrayList<>();
        (node.isArray() ? node : node.get("select")).forEach(at -> names.add((at.isArray() ? at.get(0) : at).asText()));
        return names;
    }

    private static List<String> texts(JsonNode node) {
        List<String> texts = new ArrayList<>();
        node.get("select").forEach(item -> texts.add(item.get(1).asText()));
        return texts;
    }
}

/** Rows and cells. */
class Rows {
    static InternalRow of(Object[]... parts) {
        return new GenericInternalRow(Arrays.stream(parts).flatMap(Arrays::stream).toArray());
    }

    static Object[] cells(InternalRow row) {
        Object[] cells = new Object[row.numFields()];
        Arrays.setAll(cells, i -> row.get(i, null));
        return cells;
    }

    /** A key as a row whose other cells are null. */
    static InternalRow padded(InternalRow key, int columns) {
        return key == null ? new GenericInternalRow(columns) : new GenericInternalRow(Arrays.copyOf(cells(key), columns));
    }

    static InternalRow joined(Flow left, InternalRow one, Flow right, InternalRow other) {
        return new JoinedRow(
            one != null ? one : new GenericInternalRow(left.columns().size()),
            other != null ? other : new GenericInternalRow(right.columns().size()));
    }

    /** A key with a null in it is none. */
    static InternalRow keyOrNull(InternalRow key) {
        return key.anyNull() ? null : key;
    }

    static InternalRow with(InternalRow rows, InternalRow row) {
        return of(cells(rows), new Object[] {row});
    }

    static InternalRow without(InternalRow rows, InternalRow row) {
        List<Object> left = new ArrayList<>(Arrays.asList(cells(rows)));
        if (!left.remove(row)) {
            throw new IllegalStateException("a group gives up a row that it does not have: " + row);
        }
        return new GenericInternalRow(left.toArray());
    }
}

/** Columns computed from a row. */
record Projection(List<Attribute> columns, List<Expression> bound) {
    InternalRow of(InternalRow row) {
        return new GenericInternalRow(bound.stream().map(at -> at.eval(row)).toArray());
    }
}

/** Columns computed from the rows of a group: what is folded over each row, and what is made of the results. */
record Aggregation(List<Fold> folds, Projection results) {
    List<Attribute> columns() {
        return results.columns();
    }

    InternalRow of(InternalRow rows) {
        return results.of(new GenericInternalRow(folds.stream().map(fold -> fold.of(Rows.cells(rows))).toArray()));
    }
}

/** An aggregate function as Spark declares it: a buffer of cells, updated by each row. */
record Fold(List<Expression> initial, List<Expression> update, Expression result) {
    Object of(Object[] rows) {
        InternalRow buffer = new Projection(List.of(), initial).of(InternalRow.empty());
        for (Object row : rows) {
            buffer = new Projection(List.of(), update).of(new JoinedRow(buffer, (InternalRow) row));
        }
        return result.eval(buffer);
    }
}

/** Expressions parsed, resolved and bound by Spark. */
class Catalyst {
    private static final Analyzer ANALYZER = new Analyzer(new SessionCatalog(
        new InMemoryCatalog(new SparkConf(false), new Configuration(false)),
        FunctionRegistry$.MODULE$.builtin(),
        TableFunctionRegistry$.MODULE$.builtin()));

    static {
        Configurator.setRootLevel(Level.ERROR); // only now: Spark set up the log on its first use
    }

    static Attribute attribute(String name, DataType type) {
        return new AttributeReference(
            name, type, true, Metadata.empty(), NamedExpression$.MODULE$.newExprId(), seq(List.<String>of()));
    }

    /** Expressions over one row, or over `left.` and `right.`. */
    @SafeVarargs
    static Projection project(List<String> texts, List<String> names, List<Attribute>... sides) {
        Project plan = (Project) resolved(new Project(seq(named(texts, names)), from(sides)));
        List<NamedExpression> items = asJava(plan.projectList());
        return new Projection(columns(items), bound(items, input(plan)));
    }

    static Aggregation aggregate(List<String> texts, List<String> names, List<Attribute> input) {
        Aggregate plan = (Aggregate) resolved(
            new Aggregate(seq(List.<Expression>of()), seq(named(texts, names)), from(input), Option.empty()));
        Map<AggregateExpression, Attribute> found = new LinkedHashMap<>();
        List<Expression> items = new ArrayList<>();
        asJava(plan.aggregateExpressions()).forEach(item -> items.add(results((Expression) item, found)));
        List<Fold> folds = found.keySet().stream().map(each -> fold(each, input(plan))).toList();
        List<Attribute> over = List.copyOf(found.values());
        return new Aggregation(folds, new Projection(columns(asJava(plan.aggregateExpressions())), bound(items, over)));
    }

    /** Whether expressions are columns of these names, and no more. */
    static boolean areColumns(List<String> texts, List<String> names) {
        for (int i = 0; i < texts.size(); i++) {
            Expression parsed = CatalystSqlParser$.MODULE$.parseExpression(texts.get(i));
            if (!(parsed instanceof UnresolvedAttribute at && at.nameParts().last().equals(names.get(i)))) {
                return false;
            }
        }
        return texts.size() == names.size();
    }

    private static Fold fold(AggregateExpression each, List<Attribute> input) {
        if (!(each.aggregateFunction() instanceof DeclarativeAggregate of)) {
            throw new IllegalArgumentException(each.sql() + " has no declared buffer: say in Harness how it is folded");
        }
        List<Attribute> buffer = new ArrayList<>(asJava(of.aggBufferAttributes())), both = new ArrayList<>(buffer);
        both.addAll(input);
        return new Fold(
            bound(asJava(of.initialValues()), List.of()),
            bound(asJava(of.updateExpressions()), both),
            bound(List.of(of.evaluateExpression()), buffer).get(0));
    }

    private static Expression results(Expression of, Map<AggregateExpression, Attribute> found) {
        if (of instanceof AggregateExpression each) {
            return (Expression) found.computeIfAbsent(each, AggregateExpression::resultAttribute);
        }
        List<Expression> children = new ArrayList<>();
        asJava(of.children()).forEach(child -> children.add(results(child, found)));
        return (Expression) of.withNewChildren(seq(children));
    }

    @SafeVarargs
    private static LogicalPlan from(List<Attribute>... sides) {
        LogicalPlan left = named("left", sides[0]);
        return sides.length == 1
            ? left
            : new Join(left, named("right", sides[1]), Inner$.MODULE$, Option.empty(), JoinHint.NONE());
    }

    private static LogicalPlan named(String name, List<Attribute> columns) {
        // Attributes of its own: one table may be on both sides.
        List<Attribute> own = columns.stream().map(at -> attribute(at.name(), at.dataType())).toList();
        LogicalPlan relation = new LocalRelation(seq(own), seq(List.<InternalRow>of()), false, Option.empty());
        return new SubqueryAlias(AliasIdentifier.apply(name), relation);
    }

    private static List<NamedExpression> named(List<String> texts, List<String> names) {
        List<NamedExpression> items = new ArrayList<>();
        for (int i = 0; i < texts.size(); i++) {
            Expression parsed = CatalystSqlParser$.MODULE$.parseExpression(texts.get(i));
            items.add(new Alias(parsed, names.get(i), NamedExpression$.MODULE$.newExprId(),
                seq(List.<String>of()), Option.empty(), seq(List.<String>of())));
        }
        return items;
    }

    private static LogicalPlan resolved(LogicalPlan plan) {
        return ReplaceExpressions.apply(ANALYZER.executeAndCheck(plan, new QueryPlanningTracker(Option.empty())));
    }

    private static List<Attribute> columns(List<NamedExpression> items) {
        return items.stream().map(item -> attribute(item.name(), ((Expression) item).dataType())).toList();
    }

    private static List<Attribute> input(LogicalPlan plan) {
        return new ArrayList<>(asJava(plan.children().head().output()));
    }

    private static List<Expression> bound(List<? extends Object> expressions, List<Attribute> to) {
        List<Expression> bound = new ArrayList<>();
        for (Object each : expressions) {
            bound.add(BindReferences$.MODULE$.bindReference((Expression) each, package$.MODULE$.AttributeSeq(seq(to)), false));
        }
        return bound;
    }

    private static <T> Seq<T> seq(List<T> items) {
        return asScala(items).toSeq();
    }
}
