import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * Two brokers with messages in known places, and clients that stay, so that what mqadmin prints of two clusters can be compared: prints
 * `watched OFFSET_ID UNIQUE_ID TRACED_ID SINGLE_ID CLIENT_ID` when all is as it will be found, ends when stdin does.
 */
final class Watched {
    private static final int MESSAGES = 12;

    private Watched() {
    }

    public static void main(String[] args) throws Exception {
        try (Cluster cluster = new Cluster(args[0], "w")) {
            String topic = cluster.name("live");
            List<String> brokers = new ArrayList<>();
            Report.await("both brokers", () -> find(cluster, brokers) == 2);
            for (String broker : brokers) {
                cluster.admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, 2, 2, Cluster.READ_WRITE));
            }
            Report.await("all queues", () -> cluster.listed(topic) && cluster.queues(topic).size() == 2 * brokers.size());
            SendResult single = single(cluster, args[1]);
            Cluster.Inbox inbox = new Cluster.Inbox();
            String group = cluster.name("g_live");
            List<MessageQueue> queues = cluster.queues(topic);
            SendResult first = send(cluster.producer, topic, queues.get(0), 0);
            for (int i = 1; i < MESSAGES; i++) {
                send(cluster.producer, topic, queues.get(i % queues.size()), i);
            }
            SendResult traced = traced(cluster, topic, queues.get(0));
            String client = cluster.startPushConsumer(group, topic, "*", inbox).buildMQClientId();
            Report.await("all consumed", () -> inbox.messages.size() == MESSAGES + 1);
            // all queues of the topic and of the group's retry topic, which has one at each broker
            Report.await("what was consumed at the brokers", () -> isConsumed(cluster, group, 3 * brokers.size()));
            for (String broker : brokers) {
                Report.await("the producer at the broker",
                        () -> cluster.admin.getAllProducerInfo(broker).getData().containsKey(cluster.name("producer")));
            }
            for (String broker : brokers) {
                Report.await("what was sent and read in the counters", () -> isCounted(cluster, broker, "TOPIC_PUT_NUMS", topic)
                        && isCounted(cluster, broker, "GROUP_GET_NUMS", topic + "@" + group));
            }
            System.out.println("watched " + first.getOffsetMsgId() + " " + first.getMsgId() + " " + traced.getMsgId() + " "
                    + single.getOffsetMsgId() + " " + client);
            while (System.in.read() >= 0) {
                continue;
            }
        }
        System.exit(0);
    }

    /** Fills the list with the brokers that the name server knows now: a busy one may lose a broker for a while. */
    private static int find(Cluster cluster, List<String> brokers) throws Exception {
        brokers.clear();
        try {
            cluster.admin.examineBrokerClusterInfo().getBrokerAddrTable().values().forEach(each -> brokers.add(each.selectBrokerAddr()));
        } catch (RemotingException late) { // it is asked again
            brokers.clear();
        }
        return brokers.size();
    }

    /** Whether the brokers know that the group has read all of so many queues. */
    private static boolean isConsumed(Cluster cluster, String group, int queues) throws Exception {
        try {
            return cluster.admin.examineConsumeStats(group).getOffsetTable().size() == queues
                    && cluster.admin.examineConsumeStats(group).computeTotalDiff() == 0;
        } catch (MQClientException early) { // so far it has read none
            return false;
        }
    }

    /** Whether a broker has looked at the counter since it moved: it does so every ten seconds. */
    private static boolean isCounted(Cluster cluster, String broker, String name, String key) throws Exception {
        try {
            return cluster.admin.viewBrokerStatsData(broker, name, key).getStatsMinute().getSum() > 0;
        } catch (MQClientException early) { // there is none so far
            return false;
        }
    }

    private static SendResult send(DefaultMQProducer producer, String topic, MessageQueue queue, int number) throws Exception {
        return producer.send(new Message(topic, number % 3 == 0 ? "a-tag" : "b-tag", "key-" + number, ("body " + number).getBytes()), queue);
    }

    /** A message in a topic of one queue, so that whoever sends there again finds no choice. */
    private static SendResult single(Cluster cluster, String broker) throws Exception {
        String topic = cluster.name("single");
        cluster.admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, 1, 1, Cluster.READ_WRITE));
        cluster.awaitListed(topic);
        return send(cluster.producer, topic, cluster.queues(topic).get(0), 0);
    }

    /** A message whose trace is in the trace topic. */
    private static SendResult traced(Cluster cluster, String topic, MessageQueue queue) throws Exception {
        DefaultMQProducer producer = cluster.configured(new DefaultMQProducer(cluster.name("traced"), Keys.HOOK, true, null));
        producer.start();
        SendResult sent = send(producer, topic, queue, MESSAGES);
        Report.await("its trace", () -> {
            long count = 0;
            for (MessageQueue each : cluster.queues("RMQ_SYS_TRACE_TOPIC")) {
                count += cluster.producer.maxOffset(each);
            }
            return count > 0;
        });
        producer.shutdown();
        return sent;
    }
}
