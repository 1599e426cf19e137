import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The cluster under test: where it is, clients of it, topics in it. Names carry the run's prefix, so runs can share a cluster. */
final class Cluster implements AutoCloseable {
    static final int READ_WRITE = 6; // the permission of an ordinary topic

    final String namesrv;
    final String prefix;
    final DefaultMQAdminExt admin;
    final DefaultMQProducer producer;
    final DefaultMQPullConsumer reader;
    private final AtomicInteger instances = new AtomicInteger();
    private final ConcurrentLinkedDeque<Runnable> endings = new ConcurrentLinkedDeque<>();

    Cluster(String namesrv, String prefix) throws Exception {
        this.namesrv = namesrv;
        this.prefix = prefix;
        admin = configured(new DefaultMQAdminExt(Keys.HOOK));
        admin.start();
        endLater(admin::shutdown);
        producer = configured(new DefaultMQProducer(name("producer"), Keys.HOOK));
        producer.setSendMsgTimeout(60_000);
        producer.start();
        endLater(producer::shutdown);
        reader = configured(new DefaultMQPullConsumer(name("reader"), Keys.HOOK));
        reader.start();
        endLater(reader::shutdown);
    }

    /** A client of its own connection, quick to notice what changes, so that no check waits for a 30 s poll. */
    <T extends ClientConfig> T configured(T client) {
        client.setNamesrvAddr(namesrv);
        client.setInstanceName(prefix + "-" + instances.incrementAndGet());
        client.setPollNameServerInterval(3_000);
        client.setHeartbeatBrokerInterval(3_000);
        client.setPersistConsumerOffsetInterval(1_000);
        client.setMqClientApiTimeout(60_000); // a machine may be busy with other things
        return client;
    }

    String name(String what) {
        return prefix + "_" + what;
    }

    String brokerAddress() throws Exception {
        return admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next().selectBrokerAddr();
    }

    /** A new topic with that many queues, once the name server lists it. */
    String topic(String what, int queues) throws Exception {
        String topic = name(what);
        admin.createAndUpdateTopicConfig(brokerAddress(), new TopicConfig(topic, queues, queues, READ_WRITE));
        awaitListed(topic);
        return topic;
    }

    /** Asks for the list of topics and not for the route, since a client logs a warning when a route is not there. */
    void awaitListed(String topic) throws Exception {
        Report.await(topic + " in the name server's list", () -> listed(topic));
    }

    boolean listed(String topic) throws Exception {
        return admin.fetchAllTopicList().getTopicList().contains(topic);
    }

    List<MessageQueue> queues(String topic) throws Exception {
        List<MessageQueue> queues = new ArrayList<>(producer.fetchPublishMessageQueues(topic));
        Collections.sort(queues);
        return queues;
    }

    /** Waits until the queue holds `count` messages: the broker enters them into the queue after it has acknowledged them. */
    void awaitMaxOffset(MessageQueue queue, long count) throws Exception {
        Report.await("maxOffset " + count + " of " + queue, () -> producer.maxOffset(queue) >= count);
    }

    static Message message(String topic, String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    static String body(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static Set<String> bodies(String stem, int from, int to) {
        Set<String> bodies = new TreeSet<>();
        for (int i = from; i < to; i++) {
            bodies.add(stem + i);
        }
        return bodies;
    }

    void sendAll(String topic, Set<String> bodies) throws Exception {
        for (String body : bodies) {
            SendResult result = producer.send(message(topic, body));
            Report.same("status of " + body, SendStatus.SEND_OK, result.getSendStatus());
        }
    }

    /**
     * Keeps a client running until the cluster is closed. Clients log warnings while they shut down, of pulls that they cancel
     * themselves; as long as none shuts down, every warning counts.
     */
    void endLater(Runnable shutdown) {
        endings.addFirst(shutdown);
    }

    @Override
    public void close() {
        endings.forEach(Runnable::run);
    }

    /** What a consumer has been handed, in the order it came. */
    static final class Inbox implements MessageListenerConcurrently {
        final ConcurrentLinkedQueue<MessageExt> messages = new ConcurrentLinkedQueue<>();

        @Override
        public ConsumeConcurrentlyStatus consumeMessage(
                List<MessageExt> batch, org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext context) {
            messages.addAll(batch);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }

        Set<String> bodies() {
            Set<String> bodies = new TreeSet<>();
            messages.forEach(message -> bodies.add(body(message)));
            return bodies;
        }

        void awaitExactly(Set<String> expected) throws Exception {
            awaitAll(expected);
            Report.same("messages consumed", expected.size(), messages.size());
        }

        void awaitAll(Set<String> expected) throws Exception {
            try {
                Report.await("all consumed", () -> messages.size() >= expected.size() && bodies().containsAll(expected));
            } catch (AssertionError late) {
                Set<String> missing = new TreeSet<>(expected);
                missing.removeAll(bodies());
                throw new AssertionError("after 30 s " + missing.size() + " of " + expected.size() + " not consumed: "
                        + missing.stream().limit(5).collect(java.util.stream.Collectors.toList()));
            }
            Report.same("bodies consumed", expected, bodies());
        }
    }

    /** A push consumer from the first message on, subscribed and not yet started. */
    DefaultMQPushConsumer pushConsumer(String group, String topic, String tags) throws Exception {
        DefaultMQPushConsumer consumer = configured(new DefaultMQPushConsumer(group, Keys.HOOK, new AllocateMessageQueueAveragely()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setAwaitTerminationMillisWhenShutdown(1_000); // at once, it would warn that its threads are still ending
        consumer.subscribe(topic, tags);
        return consumer;
    }

    /** Starts a push consumer that runs until the cluster is closed. */
    DefaultMQPushConsumer startPushConsumer(String group, String topic, String tags, MessageListenerConcurrently listener)
            throws Exception {
        DefaultMQPushConsumer consumer = pushConsumer(group, topic, tags);
        consumer.registerMessageListener(listener);
        start(consumer);
        return consumer;
    }

    void start(DefaultMQPushConsumer consumer) throws Exception {
        consumer.start();
        endLater(consumer::shutdown);
    }
}
