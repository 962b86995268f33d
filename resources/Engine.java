// What the engine's JVM runs. Spark compiles it at each start, by the compiler it has for its queries.

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connect.service.SparkConnectServer;

public class Engine {
    // Spark's own main would give each session class loaders of its own, and compiled queries are kept by class
    // loader: every new session would compile them anew, which is most of what a small step costs. It does so by
    // settings it gives the first session; there is one already, of ours, which has none of them.
    public static void main(String[] arguments) {
        SparkSession.builder().getOrCreate();
        SparkConnectServer.main(arguments);
    }
}
