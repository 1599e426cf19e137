import java.util.Set;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * A producer and a consumer that stay, for the commands that describe who is connected: prints `live OFFSET_ID UNIQUE_ID` of a
 * message with the key `a-key`, ends when stdin does.
 */
final class Live {
    private Live() {
    }

    public static void main(String[] args) throws Exception {
        try (Cluster cluster = new Cluster(args[0], args[1])) {
            String topic = cluster.topic("live", 2);
            Set<String> bodies = Cluster.bodies("live ", 0, 10);
            cluster.sendAll(topic, bodies);
            Cluster.Inbox inbox = new Cluster.Inbox();
            cluster.startPushConsumer(cluster.name("g_live"), topic, "*", inbox);
            inbox.awaitExactly(bodies);
            SendResult keyed = cluster.producer.send(new Message(topic, "a-tag", "a-key", "keyed".getBytes()));
            Report.await("the keyed message consumed", () -> inbox.bodies().contains("keyed"));
            System.out.println("live " + keyed.getOffsetMsgId() + " " + keyed.getMsgId());
            while (System.in.read() >= 0) {
                continue;
            }
        }
        System.exit(0);
    }
}
