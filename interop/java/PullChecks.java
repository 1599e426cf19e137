import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import java.util.stream.LongStream;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The two pull consumers of the Java client. */
final class PullChecks {
    private final Cluster cluster;

    PullChecks(Cluster cluster) {
        this.cluster = cluster;
    }

    void run() {
        Report.check("pull consumer, pull, statuses", this::pull);
        Report.check("pull consumer, offsets kept by the broker", this::offsets);
        Report.check("pull consumer, waits for a message", this::blockingPull);
        Report.check("lite pull, subscribe, poll", this::liteSubscribe);
        Report.check("lite pull, assign, seek", this::liteAssign);
    }

    private void pull() throws Exception {
        String topic = cluster.topic("pull", 2);
        cluster.sendAll(topic, Cluster.bodies("pull ", 0, 50));
        Set<MessageQueue> queues = cluster.reader.fetchSubscribeMessageQueues(topic);
        Report.same("queues", 2, queues.size());
        Set<String> found = new TreeSet<>();
        for (MessageQueue queue : queues) {
            cluster.awaitMaxOffset(queue, 25);
            long offset = 0;
            PullResult result = cluster.reader.pull(queue, "*", offset, 10);
            while (result.getPullStatus() == PullStatus.FOUND) {
                Report.same("min offset", 0L, result.getMinOffset());
                Report.same("max offset", 25L, result.getMaxOffset());
                for (MessageExt message : result.getMsgFoundList()) {
                    Report.same("queue offset", offset++, message.getQueueOffset());
                    found.add(Cluster.body(message));
                }
                Report.same("next offset", offset, result.getNextBeginOffset());
                result = cluster.reader.pull(queue, "*", offset, 10);
            }
            Report.same("status at the end", PullStatus.NO_NEW_MSG, result.getPullStatus());
            Report.same("status past the end", PullStatus.OFFSET_ILLEGAL, cluster.reader.pull(queue, "*", 1_000, 10).getPullStatus());
        }
        Report.same("bodies", Cluster.bodies("pull ", 0, 50), found);
    }

    private void offsets() throws Exception {
        String topic = cluster.topic("pull_offsets", 2);
        cluster.sendAll(topic, Cluster.bodies("offsets ", 0, 50));
        String group = cluster.name("g_pull");
        DefaultMQPullConsumer first = cluster.configured(new DefaultMQPullConsumer(group, Keys.HOOK));
        first.start();
        cluster.endLater(first::shutdown);
        for (MessageQueue queue : first.fetchSubscribeMessageQueues(topic)) {
            first.pull(queue, "*", 0, 1); // makes the group known; 5.x refuses an offset of a group it has not heard of
            first.getOffsetStore().updateConsumeOffsetToBroker(queue, 20 + queue.getQueueId(), false);
        }
        DefaultMQPullConsumer second = cluster.configured(new DefaultMQPullConsumer(group, Keys.HOOK));
        second.start();
        cluster.endLater(second::shutdown);
        for (MessageQueue queue : second.fetchSubscribeMessageQueues(topic)) {
            long offset = second.getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_STORE);
            Report.same("offset of " + queue, 20L + queue.getQueueId(), offset);
        }
    }

    private void blockingPull() throws Exception {
        String topic = cluster.topic("pull_block", 1);
        MessageQueue queue = cluster.queues(topic).get(0);
        CompletableFuture<Void> sent = CompletableFuture.runAsync(() -> {
            try {
                Thread.sleep(500); // nothing shows that the other thread's pull has reached the broker
                cluster.sendAll(topic, Set.of("late"));
            } catch (Exception failure) {
                throw new IllegalStateException(failure);
            }
        });
        PullResult result = cluster.reader.pullBlockIfNotFound(queue, "*", 0, 10);
        sent.join();
        Report.same("status", PullStatus.FOUND, result.getPullStatus());
        Report.same("body", "late", Cluster.body(result.getMsgFoundList().get(0)));
    }

    private void liteSubscribe() throws Exception {
        String topic = cluster.topic("lite", 4);
        Set<String> bodies = Cluster.bodies("lite ", 0, 60);
        cluster.sendAll(topic, bodies);
        DefaultLitePullConsumer consumer = cluster.configured(new DefaultLitePullConsumer(cluster.name("g_lite"), Keys.HOOK));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        cluster.endLater(consumer::shutdown);
        pollExactly(consumer, bodies);
    }

    static void pollExactly(DefaultLitePullConsumer consumer, Set<String> bodies) throws Exception {
        List<String> polled = new ArrayList<>();
        Report.await(bodies.size() + " messages polled", () -> {
            consumer.poll(200).forEach(message -> polled.add(Cluster.body(message)));
            return polled.size() >= bodies.size();
        });
        Report.same("bodies polled", bodies, new TreeSet<>(polled));
        Report.same("messages polled", bodies.size(), polled.size());
    }

    private void liteAssign() throws Exception {
        String topic = cluster.topic("lite_assign", 1);
        cluster.sendAll(topic, Cluster.bodies("assign ", 0, 10));
        MessageQueue queue = cluster.queues(topic).get(0);
        cluster.awaitMaxOffset(queue, 10);
        DefaultLitePullConsumer consumer = cluster.configured(new DefaultLitePullConsumer(cluster.name("g_lite_assign"), Keys.HOOK));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.start();
        cluster.endLater(consumer::shutdown);
        consumer.assign(consumer.fetchMessageQueues(topic));
        // All of them first: a seek during the first pull leaves it to chance what the client has cached.
        Report.same("queue offsets", LongStream.range(0, 10).boxed().collect(Collectors.toList()), pollOffsets(consumer, 10));
        consumer.seek(queue, 4);
        Report.same("queue offsets after seek", LongStream.range(4, 10).boxed().collect(Collectors.toList()), pollOffsets(consumer, 6));
    }

    private static List<Long> pollOffsets(DefaultLitePullConsumer consumer, int count) throws Exception {
        List<Long> offsets = new ArrayList<>();
        Report.await(count + " messages polled", () -> {
            consumer.poll(200).forEach(message -> offsets.add(message.getQueueOffset()));
            return offsets.size() >= count;
        });
        return offsets;
    }
}
