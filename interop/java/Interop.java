import java.nio.file.Path;
import java.time.LocalDateTime;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Checks of a cluster by a real client. One line a check: `ok NAME` or `FAIL NAME: why`; `done` at the very end. A line
 * `phase NAME TIME` says when clients begin to leave; the time is written as in the client's log.
 *
 * <pre>
 * Interop check NAMESRV PREFIX              everything a client can do
 * Interop write NAMESRV MANIFEST            fill a store, note what went in
 * Interop read  NAMESRV MANIFEST PREFIX     find it all again
 * Interop send  NAMESRV MANIFEST PREFIX TOPIC timed|untimed    messages that Spark is to read, noted
 * Interop receive NAMESRV MANIFEST PREFIX TOPIC STEM COUNT     messages that Spark wrote, noted
 * </pre>
 */
final class Interop {
    private static final DateTimeFormatter LOG_TIME = DateTimeFormatter.ofPattern("yyyy-MM-dd HH:mm:ss.SSS");

    private Interop() {
    }

    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "check":
                check(args[1], args[2]);
                break;
            case "write":
                try (Cluster cluster = new Cluster(args[1], "writer")) {
                    new Store(cluster).write(Path.of(args[2]));
                    phase("closing");
                }
                break;
            case "read":
                try (Cluster cluster = new Cluster(args[1], args[3])) {
                    new Store(cluster).read(Path.of(args[2]));
                    phase("closing");
                }
                break;
            case "send":
                try (Cluster cluster = new Cluster(args[1], args[3])) {
                    new SparkExchange(cluster).send(args[4], "timed".equals(args[5]), Path.of(args[2]));
                    phase("closing");
                }
                break;
            case "receive":
                try (Cluster cluster = new Cluster(args[1], args[3])) {
                    new SparkExchange(cluster).receive(args[4], args[5], Integer.parseInt(args[6]), Path.of(args[2]));
                    phase("closing");
                }
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
        System.out.println("done");
        System.exit(0);
    }

    private static void check(String namesrv, String prefix) throws Exception {
        try (Cluster cluster = new Cluster(namesrv, prefix)) {
            ConsumeChecks consume = new ConsumeChecks(cluster);
            sideBySide(List.of(
                    new AdminChecks(cluster)::run,
                    new SendChecks(cluster)::run,
                    new Queries(cluster)::run,
                    new PullChecks(cluster)::run,
                    consume::plain,
                    consume::slow));
            phase("leaving");
            Leaving leaving = new Leaving(cluster);
            sideBySide(List.of(leaving::joinAndLeave, leaving::restartedPush, leaving::restartedLitePull));
            phase("closing");
        }
    }

    /** The checks mostly wait for the broker, so they can share a processor. */
    private static void sideBySide(List<Runnable> suites) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(suites.size());
        List<Future<?>> running = new ArrayList<>();
        suites.forEach(suite -> running.add(pool.submit(suite)));
        for (Future<?> each : running) {
            each.get();
        }
        pool.shutdown();
    }

    private static void phase(String name) {
        System.out.println("phase " + name + " " + LocalDateTime.now().format(LOG_TIME));
    }
}
