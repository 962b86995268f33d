// What the engine's JVM runs. Spark compiles it at each start, by the compiler it has for its queries.

import java.lang.reflect.Field;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeFormatter;
import org.apache.spark.sql.connect.service.SparkConnectServer;
import scala.util.matching.Regex;

public class Engine {
    // Spark's own main would give each session class loaders of its own, and compiled queries are kept by class
    // loader: every new session would compile them anew, which is most of what a small step costs. It does so by
    // settings it gives the first session; there is one already, of ours, which has none of them.
    public static void main(String[] arguments) throws Exception {
        measureCodeQuickly();
        writeOneFile();
        SparkSession.builder().getOrCreate();
        SparkConnectServer.main(arguments);
    }

    // Of every piece of code that it generates Spark asks how long it is without its comments. Its expression tries
    // every blank of an indentation against all those behind it: 38 % of what an engine at many small steps does
    // besides compiling, by its profile. This one looks for a slash, which is 2 %; that it leaves the blanks before a
    // comment changes no more than where long methods are split.
    private static void measureCodeQuickly() throws Exception {
        Field pattern = Regex.class.getDeclaredField("pattern");
        pattern.setAccessible(true);
        pattern.set(CodeFormatter.commentRegexp(), Pattern.compile(COMMENT));
    }

    // Hadoop writes a second file with checksums beside each file of a local disk, and starts two processes to set its
    // permissions. Only Spark reads them. Pages of Parquet and deletion vectors have checksums of their own, which the
    // engine verifies. All later calls get this file system: Hadoop keeps it.
    private static void writeOneFile() throws Exception {
        FileSystem.getLocal(new Configuration()).setWriteChecksum(false);
    }

    private static final String COMMENT = "/(?:\\*[\\s\\S]*?\\*/|/[^\\n]*\\n)";
}
