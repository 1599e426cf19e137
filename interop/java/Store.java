import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Fills a store through one broker and finds everything again through another that has opened the same directory.
 *
 * What went in is noted in a manifest, one fact a line, fields parted by tabs:
 * <pre>
 * message  TOPIC QUEUE OFFSET UNIQUE_ID OFFSET_ID KEYS TAGS BODY(base64)
 * topic    TOPIC READ_QUEUES WRITE_QUEUES
 * ends     TOPIC QUEUE MIN MAX
 * consumed GROUP TOPIC QUEUE OFFSET
 * </pre>
 */
final class Store {
    private static final String[] TOPICS = {"StorePlain", "StoreKeyed", "StoreBatch"};
    private static final int[] QUEUES = {3, 2, 1};
    private static final String GROUP = "store_group";

    private final Cluster cluster;

    Store(Cluster cluster) {
        this.cluster = cluster;
    }

    void write(Path manifest) {
        Report.check("messages written", () -> Files.write(manifest, fill()));
    }

    void read(Path manifest) throws Exception {
        Map<String, List<String[]>> facts = new HashMap<>();
        for (String line : Files.readAllLines(manifest)) {
            String[] fields = line.split("\t", -1);
            facts.computeIfAbsent(fields[0], kind -> new ArrayList<>()).add(fields);
        }
        Report.check("topics", () -> findTopics(facts.get("topic")));
        Report.check("min and max offsets", () -> findEnds(facts.get("ends")));
        Report.check("consumer offsets", () -> findConsumed(facts.get("consumed")));
        Report.check("every message by its queue offset", () -> pullAll(facts.get("message")));
        Report.check("every message by a push consumer", () -> consumeAll(facts.get("message")));
        Report.check("every 10th message by offset id", () -> findByOffsetId(facts.get("message")));
        Report.check("every 10th message by unique id", () -> findByUniqueId(facts.get("message")));
        Report.check("every key", () -> findByKey(facts.get("message")));
        Report.check("sending goes on where it stopped", () -> sendMore(facts.get("ends")));
    }

    // ---------------------------------------------------------------- writing

    private List<String> fill() throws Exception {
        List<String> facts = new ArrayList<>();
        for (int i = 0; i < TOPICS.length; i++) {
            cluster.admin.createAndUpdateTopicConfig(cluster.brokerAddress(), new TopicConfig(TOPICS[i], QUEUES[i], QUEUES[i], Cluster.READ_WRITE));
            cluster.awaitListed(TOPICS[i]);
            facts.add(String.join("\t", "topic", TOPICS[i], String.valueOf(QUEUES[i]), String.valueOf(QUEUES[i])));
        }
        // Enough for several files: the harness sets a log segment to 1 MiB and a queue file to 500 entries.
        for (int i = 0; i < 1_800; i++) {
            Message message = Cluster.message(TOPICS[0], "plain " + i + " " + "x".repeat(i % 1_000));
            facts.add(fact(message, cluster.producer.send(message)));
        }
        for (int i = 0; i < 120; i++) {
            Message message = new Message(TOPICS[1], i % 3 == 0 ? "" : "tag" + i % 3, "key" + i + " every-" + i % 4, ("größe " + i).getBytes("UTF-8"));
            message.putUserProperty("number", String.valueOf(i));
            facts.add(fact(message, cluster.producer.send(message)));
        }
        for (int i = 0; i < 10; i++) {
            facts.addAll(sendBatch(i));
        }
        Message compressed = Cluster.message(TOPICS[1], "press me ".repeat(4_000));
        facts.add(fact(compressed, cluster.producer.send(compressed)));
        for (String topic : TOPICS) {
            for (MessageQueue queue : cluster.queues(topic)) {
                long count = facts.stream().filter(fact -> fact.startsWith("message\t" + topic + "\t" + queue.getQueueId() + "\t")).count();
                cluster.awaitMaxOffset(queue, count);
                Report.same("max offset of " + queue, count, cluster.producer.maxOffset(queue));
                facts.add(String.join("\t", "ends", topic, String.valueOf(queue.getQueueId()), "0", String.valueOf(count)));
            }
        }
        facts.addAll(commit());
        return facts;
    }

    private List<String> sendBatch(int number) throws Exception {
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            batch.add(new Message(TOPICS[2], "batched", "batch" + number + "-" + i, ("batch " + number + " " + i).getBytes()));
        }
        SendResult result = cluster.producer.send(batch);
        String[] uniqueIds = result.getMsgId().split(",");
        String[] offsetIds = result.getOffsetMsgId().split(",");
        List<String> facts = new ArrayList<>();
        for (int i = 0; i < batch.size(); i++) {
            facts.add(fact(batch.get(i), result.getMessageQueue().getQueueId(), result.getQueueOffset() + i, uniqueIds[i], offsetIds[i]));
        }
        return facts;
    }

    private static String fact(Message message, SendResult result) {
        return fact(message, result.getMessageQueue().getQueueId(), result.getQueueOffset(), result.getMsgId(), result.getOffsetMsgId());
    }

    private static String fact(Message message, int queue, long offset, String uniqueId, String offsetId) {
        String keys = message.getKeys() == null ? "" : message.getKeys();
        String tags = message.getTags() == null ? "" : message.getTags();
        String body = Base64.getEncoder().encodeToString(message.getBody());
        return String.join("\t", "message", message.getTopic(), String.valueOf(queue), String.valueOf(offset), uniqueId, offsetId, keys, tags, body);
    }

    /** Leaves the group in the middle of every queue. */
    private List<String> commit() throws Exception {
        List<String> facts = new ArrayList<>();
        DefaultMQPullConsumer consumer = cluster.configured(new DefaultMQPullConsumer(GROUP, Keys.HOOK));
        consumer.start();
        cluster.endLater(consumer::shutdown);
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(TOPICS[0])) {
            long offset = 100 + queue.getQueueId();
            consumer.pull(queue, "*", 0, 1); // makes the group known
            consumer.getOffsetStore().updateConsumeOffsetToBroker(queue, offset, false);
            facts.add(String.join("\t", "consumed", GROUP, queue.getTopic(), String.valueOf(queue.getQueueId()), String.valueOf(offset)));
        }
        return facts;
    }

    // ---------------------------------------------------------------- reading

    private static String brief(MessageExt message) {
        String keys = message.getKeys() == null ? "" : message.getKeys();
        String tags = message.getTags() == null ? "" : message.getTags();
        String body = Base64.getEncoder().encodeToString(message.getBody());
        return String.join("\t", "message", message.getTopic(), String.valueOf(message.getQueueId()), String.valueOf(message.getQueueOffset()),
                message.getMsgId(), Queries.offsetId(message), keys, tags, body);
    }

    private void compare(String[] fact, MessageExt message) {
        Report.require(message != null, "not found: " + String.join(" ", fact));
        Report.same("message", String.join("\t", fact), brief(message));
    }

    private MessageQueue queue(String topic, String id) throws Exception {
        MessageQueue any = cluster.queues(topic).get(0);
        return new MessageQueue(topic, any.getBrokerName(), Integer.parseInt(id));
    }

    private void findTopics(List<String[]> facts) throws Exception {
        for (String[] fact : facts) {
            cluster.awaitListed(fact[1]);
            var queue = cluster.admin.examineTopicRouteInfo(fact[1]).getQueueDatas().get(0);
            Report.same("read queues of " + fact[1], Integer.valueOf(fact[2]), queue.getReadQueueNums());
            Report.same("write queues of " + fact[1], Integer.valueOf(fact[3]), queue.getWriteQueueNums());
        }
    }

    private void findEnds(List<String[]> facts) throws Exception {
        for (String[] fact : facts) {
            MessageQueue queue = queue(fact[1], fact[2]);
            Report.same("min offset of " + queue, Long.valueOf(fact[3]), cluster.producer.minOffset(queue));
            Report.same("max offset of " + queue, Long.valueOf(fact[4]), cluster.producer.maxOffset(queue));
        }
    }

    private void findConsumed(List<String[]> facts) throws Exception {
        DefaultMQPullConsumer consumer = cluster.configured(new DefaultMQPullConsumer(GROUP, Keys.HOOK));
        consumer.start();
        cluster.endLater(consumer::shutdown);
        for (String[] fact : facts) {
            MessageQueue queue = queue(fact[2], fact[3]);
            long offset = consumer.getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_STORE);
            Report.same("offset of " + fact[1] + " in " + queue, Long.valueOf(fact[4]), offset);
        }
    }

    private void pullAll(List<String[]> facts) throws Exception {
        Map<String, MessageExt> found = new HashMap<>();
        for (String topic : TOPICS) {
            for (MessageQueue queue : cluster.queues(topic)) {
                PullResult result = cluster.reader.pull(queue, "*", 0, 32);
                while (result.getMsgFoundList() != null) {
                    result.getMsgFoundList().forEach(message -> found.put(message.getMsgId(), message));
                    result = cluster.reader.pull(queue, "*", result.getNextBeginOffset(), 32);
                }
            }
        }
        Report.same("messages pulled", facts.size(), found.size());
        for (String[] fact : facts) {
            compare(fact, found.get(fact[4]));
        }
    }

    private void consumeAll(List<String[]> facts) throws Exception {
        Cluster.Inbox inbox = new Cluster.Inbox();
        DefaultMQPushConsumer consumer = cluster.pushConsumer(cluster.name("pusher"), TOPICS[0], "*");
        consumer.subscribe(TOPICS[1], "*");
        consumer.subscribe(TOPICS[2], "*");
        consumer.registerMessageListener(inbox);
        consumer.start();
        cluster.endLater(consumer::shutdown);
        Report.await(facts.size() + " messages consumed", () -> inbox.messages.size() >= facts.size());
        Map<String, MessageExt> found = new HashMap<>();
        inbox.messages.forEach(message -> found.put(message.getMsgId(), message));
        Report.same("messages consumed", facts.size(), inbox.messages.size());
        for (String[] fact : facts) {
            compare(fact, found.get(fact[4]));
        }
    }

    private void findByOffsetId(List<String[]> facts) throws Exception {
        for (int i = 0; i < facts.size(); i += 10) {
            compare(facts.get(i), cluster.producer.viewMessage(facts.get(i)[1], facts.get(i)[5]));
        }
    }

    private void findByUniqueId(List<String[]> facts) throws Exception {
        for (int i = 0; i < facts.size(); i += 10) {
            compare(facts.get(i), cluster.producer.viewMessage(facts.get(i)[1], facts.get(i)[4]));
        }
    }

    private void findByKey(List<String[]> facts) throws Exception {
        Map<String, Set<String>> expected = new TreeMap<>();
        for (String[] fact : facts) {
            for (String key : fact[6].split(" ")) {
                if (!key.isEmpty()) {
                    expected.computeIfAbsent(fact[1] + "\t" + key, each -> new HashSet<>()).add(String.join("\t", fact));
                }
            }
        }
        for (Map.Entry<String, Set<String>> each : expected.entrySet()) {
            String[] topicAndKey = each.getKey().split("\t");
            QueryResult result = cluster.producer.queryMessage(topicAndKey[0], topicAndKey[1], 64, 0, Long.MAX_VALUE);
            Set<String> found = new HashSet<>();
            result.getMessageList().forEach(message -> found.add(brief(message)));
            Report.same("messages with key " + topicAndKey[1], each.getValue(), found);
        }
    }

    private void sendMore(List<String[]> facts) throws Exception {
        for (String[] fact : facts) {
            MessageQueue queue = queue(fact[1], fact[2]);
            Message message = Cluster.message(queue.getTopic(), "more");
            SendResult result = cluster.producer.send(message, queue);
            Report.same("next offset of " + queue, Long.valueOf(fact[4]), result.getQueueOffset());
            MessageExt found = cluster.producer.viewMessage(queue.getTopic(), result.getOffsetMsgId());
            Report.same("body", "more", new String(found.getBody(), StandardCharsets.UTF_8));
        }
    }
}
