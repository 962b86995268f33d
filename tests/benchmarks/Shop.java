import static org.apache.kafka.streams.CloseOptions.GroupMembershipOperation.LEAVE_GROUP;

import com.fasterxml.jackson.annotation.JsonFormat;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Produced;

/**
 * The benchmarks' shop as a Kafka Streams application: orders that look up customers by foreign key, to a topic.
 *
 * The JVM obeys one command a line on standard input, and prints `done` after each: `start APPLICATION ORDERS CUSTOMERS
 * OUTPUT STATE`, `pause`, `resume`, `stop`. So it stays warm between applications.
 */
public class Shop {
    record Order(long customer_id, BigDecimal amount, int quantity, String status, String placed_at, String note) {}

    record Customer(String name, String country) {}

    record Enriched(
        long customer_id,
        @JsonFormat(shape = JsonFormat.Shape.STRING) BigDecimal amount,
        int quantity,
        String status,
        String placed_at,
        String note,
        String name,
        String country) {}

    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws IOException {
        String servers = arguments[0];
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        KafkaStreams streams = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "start" -> {
                    Topology topology = topology(words[2], words[3], words[4]);
                    streams = new KafkaStreams(topology, settings(servers, words[1], words[5]));
                    streams.setUncaughtExceptionHandler(error -> {
                        error.printStackTrace();
                        Runtime.getRuntime().halt(1);
                        return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
                    });
                    streams.start();
                }
                case "pause" -> streams.pause();
                case "resume" -> streams.resume();
                // Otherwise the next start waits until the session of the one before has expired: 45 seconds.
                case "stop" -> streams.close(CloseOptions.groupMembershipOperation(LEAVE_GROUP));
                default -> throw new IllegalArgumentException(line);
            }
            System.out.println("done");
        }
    }

    /** Everything else, the cache of the state stores too, has Kafka Streams' default. */
    static Properties settings(String servers, String application, String state) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, state);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100); // the default under exactly once
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        return settings;
    }

    static Topology topology(String orders, String customers, String output) {
        StreamsBuilder builder = new StreamsBuilder();
        KTable<String, Order> left = builder.table(orders, Consumed.with(Serdes.String(), json(Order.class)));
        KTable<String, Customer> right = builder.table(customers, Consumed.with(Serdes.String(), json(Customer.class)));
        left.join(right, order -> Long.toString(order.customer_id()), Shop::enriched)
            .toStream()
            .to(output, Produced.with(Serdes.String(), json(Enriched.class)));
        return builder.build();
    }

    static Enriched enriched(Order order, Customer customer) {
        return new Enriched(order.customer_id(), order.amount(), order.quantity(), order.status(), order.placed_at(),
            order.note(), customer.name(), customer.country());
    }

    static <T> Serde<T> json(Class<T> type) {
        return Serdes.serdeFrom(
            (topic, value) -> {
                try {
                    return value == null ? null : JSON.writeValueAsBytes(value);
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
            },
            (topic, bytes) -> {
                try {
                    return bytes == null ? null : JSON.readValue(bytes, type);
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
            });
    }
}
