import java.util.List;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Messages by key and by id; offsets of a queue by place and by time. */
final class Queries {
    private final Cluster cluster;
    private final DefaultMQProducer producer;

    Queries(Cluster cluster) {
        this.cluster = cluster;
        this.producer = cluster.producer;
    }

    /** The id that names broker and log offset, whichever id `getMsgId` prefers. */
    static String offsetId(MessageExt message) {
        return message instanceof MessageClientExt ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId();
    }

    void run() {
        Report.check("query by key", this::byKey);
        Report.check("query by offset message id", this::byOffsetId);
        Report.check("query by unique id", this::byUniqueId);
        Report.check("offsets, min, max, earliest store time", this::ends);
        Report.check("offsets, search by time", this::byTime);
    }

    private MessageQueue queue(String what) throws Exception {
        return cluster.queues(cluster.topic(what, 1)).get(0);
    }

    /**
     * Sends the message, and another after it. The broker indexes in log order, queue before keys: when the second one is in
     * the queue, the keys of the first are in the index. Asking sooner makes the client log a warning.
     */
    private SendResult sendIndexed(MessageQueue queue, Message message) throws Exception {
        SendResult result = producer.send(message, queue);
        SendResult last = producer.send(Cluster.message(queue.getTopic(), "after"), queue);
        cluster.awaitMaxOffset(queue, last.getQueueOffset() + 1);
        return result;
    }

    private void byKey() throws Exception {
        MessageQueue queue = queue("by_key");
        long begin = System.currentTimeMillis() - 60_000;
        for (String body : List.of("one", "two")) {
            sendIndexed(queue, new Message(queue.getTopic(), "", "order-17 " + body + "-alone", body.getBytes()));
        }
        QueryResult both = producer.queryMessage(queue.getTopic(), "order-17", 32, begin, Long.MAX_VALUE);
        Report.same("messages with the shared key", 2, both.getMessageList().size());
        Report.require(both.getIndexLastUpdateTimestamp() > begin, "time of the last index update: " + both.getIndexLastUpdateTimestamp());
        QueryResult one = producer.queryMessage(queue.getTopic(), "two-alone", 32, begin, Long.MAX_VALUE);
        Report.same("messages with the key of one", 1, one.getMessageList().size());
        Report.same("body", "two", Cluster.body(one.getMessageList().get(0)));
    }

    private void byOffsetId() throws Exception {
        MessageQueue queue = queue("by_id");
        SendResult result = sendIndexed(queue, Cluster.message(queue.getTopic(), "by id"));
        MessageExt found = producer.viewMessage(queue.getTopic(), result.getOffsetMsgId());
        Report.same("body", "by id", Cluster.body(found));
        Report.same("queue offset", result.getQueueOffset(), found.getQueueOffset());
    }

    private void byUniqueId() throws Exception {
        MessageQueue queue = queue("by_unique_id");
        SendResult result = sendIndexed(queue, Cluster.message(queue.getTopic(), "by unique id"));
        MessageExt found = producer.viewMessage(queue.getTopic(), result.getMsgId());
        Report.same("body", "by unique id", Cluster.body(found));
        Report.same("unique id", result.getMsgId(), found.getMsgId());
    }

    private void ends() throws Exception {
        MessageQueue queue = queue("ends");
        Report.same("max offset of an empty queue", 0L, producer.maxOffset(queue));
        Report.same("min offset of an empty queue", 0L, producer.minOffset(queue));
        String id = null;
        for (int i = 0; i < 5; i++) {
            String sent = producer.send(Cluster.message(queue.getTopic(), "end " + i), queue).getOffsetMsgId();
            id = id == null ? sent : id;
        }
        cluster.awaitMaxOffset(queue, 5);
        Report.same("max offset", 5L, producer.maxOffset(queue));
        Report.same("min offset", 0L, producer.minOffset(queue));
        MessageExt first = producer.viewMessage(queue.getTopic(), id);
        Report.same("earliest store time", first.getStoreTimestamp(), producer.earliestMsgStoreTime(queue));
    }

    private void byTime() throws Exception {
        MessageQueue queue = queue("by_time");
        long[] stored = new long[4];
        for (int i = 0; i < stored.length; i++) {
            String id = producer.send(Cluster.message(queue.getTopic(), "at " + i), queue).getOffsetMsgId();
            long at = producer.viewMessage(queue.getTopic(), id).getStoreTimestamp();
            stored[i] = at;
            Report.await("a later millisecond", () -> System.currentTimeMillis() > at + 2);
        }
        cluster.awaitMaxOffset(queue, stored.length);
        for (int i = 0; i < stored.length; i++) {
            Report.same("offset at the time of message " + i, (long) i, producer.searchOffset(queue, stored[i]));
        }
        Report.same("offset before all", 0L, producer.searchOffset(queue, stored[0] - 1_000));
        // between two messages 4.x answers the nearer one, 5.x the later one
        long between = producer.searchOffset(queue, stored[1] + 1);
        Report.require(between == 1 || between == 2, "offset between the second and the third: " + between);
        // 4.x answers the last message for a time after all, 5.x the end of the queue
        long after = producer.searchOffset(queue, System.currentTimeMillis() + 60_000);
        Report.require(after == 3 || after == 4, "offset after all: " + after);
    }
}
