import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Apache's mqadmin, many commands in one process, since starting it costs more than any command.
 *
 * Reads a command a line, arguments parted by tabs; prints what mqadmin prints, then a line `### end`.
 */
final class Mqadmin {
    private Mqadmin() {
    }

    public static void main(String[] args) throws Exception {
        System.setErr(System.out);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            MQAdminStartup.main0(line.split("\t"), null);
            System.out.println("\n### end");
            forget();
        }
        System.exit(0);
    }

    /** Each line gets new commands: that of queryMsgByUniqueKey keeps its client, which is shut down after the first time. */
    private static void forget() throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) { // the list has another name in each version
            if (List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }
}
