import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Every way to send, each read back from the queue it went to. */
final class SendChecks {
    private final Cluster cluster;
    private final DefaultMQProducer producer;

    SendChecks(Cluster cluster) {
        this.cluster = cluster;
        this.producer = cluster.producer;
    }

    void run() {
        Report.check("send sync", this::sync);
        Report.check("send async", this::async);
        Report.check("send oneway", this::oneway);
        Report.check("send batch", this::batch);
        Report.check("send keys, tags, properties, flag", this::everyField);
        Report.check("send compressed (64 KiB)", this::compressed);
        Report.check("send over the VIP port", this::vip);
        Report.check("send to a topic created by sending", this::autoCreated);
        Report.check("send in a transaction, commit and rollback", this::transaction);
    }

    private MessageQueue onlyQueue(String what) throws Exception {
        return cluster.queues(cluster.topic(what, 1)).get(0);
    }

    private List<MessageExt> stored(MessageQueue queue, int count) throws Exception {
        cluster.awaitMaxOffset(queue, count);
        List<MessageExt> found = new ArrayList<>();
        while (found.size() < count) {
            List<MessageExt> more = cluster.reader.pull(queue, "*", found.size(), 32).getMsgFoundList();
            Report.require(more != null, "only " + found.size() + " of " + count + " to pull from " + queue);
            found.addAll(more);
        }
        return found;
    }

    private void sync() throws Exception {
        MessageQueue queue = onlyQueue("sync");
        for (int i = 0; i < 20; i++) {
            SendResult result = producer.send(Cluster.message(queue.getTopic(), "sync " + i));
            Report.same("status", SendStatus.SEND_OK, result.getSendStatus());
            Report.same("queue", queue, result.getMessageQueue());
            Report.same("queue offset", (long) i, result.getQueueOffset());
            Report.same("length of the offset message id", 32, result.getOffsetMsgId().length());
            Report.same("region", "DefaultRegion", result.getRegionId());
            Report.require(result.isTraceOn(), "trace is on unless the broker says otherwise");
        }
        List<MessageExt> stored = stored(queue, 20);
        for (int i = 0; i < 20; i++) {
            Report.same("body", "sync " + i, Cluster.body(stored.get(i)));
        }
    }

    private void async() throws Exception {
        MessageQueue queue = onlyQueue("async");
        ConcurrentLinkedQueue<String> problems = new ConcurrentLinkedQueue<>();
        Set<Long> offsets = new TreeSet<>();
        CountDownLatch answered = new CountDownLatch(200);
        for (int i = 0; i < 200; i++) {
            producer.send(Cluster.message(queue.getTopic(), "async " + i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    synchronized (offsets) {
                        offsets.add(result.getQueueOffset());
                    }
                    answered.countDown();
                }

                @Override
                public void onException(Throwable failure) {
                    problems.add(failure.toString());
                    answered.countDown();
                }
            });
        }
        Report.require(answered.await(Report.PATIENCE_S, TimeUnit.SECONDS), answered.getCount() + " of 200 not answered");
        Report.require(problems.isEmpty(), "not sent: " + problems.peek());
        Report.same("different queue offsets", 200, offsets.size());
        Set<String> bodies = new TreeSet<>();
        stored(queue, 200).forEach(message -> bodies.add(Cluster.body(message)));
        Report.same("bodies", Cluster.bodies("async ", 0, 200), bodies);
    }

    private void oneway() throws Exception {
        MessageQueue queue = onlyQueue("oneway");
        for (int i = 0; i < 20; i++) {
            producer.sendOneway(Cluster.message(queue.getTopic(), "oneway " + i));
        }
        Set<String> bodies = new TreeSet<>();
        stored(queue, 20).forEach(message -> bodies.add(Cluster.body(message)));
        Report.same("bodies", Cluster.bodies("oneway ", 0, 20), bodies);
    }

    private void batch() throws Exception {
        MessageQueue queue = onlyQueue("batch");
        producer.send(Cluster.message(queue.getTopic(), "before"));
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 50; i++) {
            Message message = Cluster.message(queue.getTopic(), "batch " + i);
            message.setKeys("key" + i);
            message.setTags(i % 2 == 0 ? "even" : "odd");
            batch.add(message);
        }
        SendResult result = producer.send(batch);
        Report.same("status", SendStatus.SEND_OK, result.getSendStatus());
        Report.same("queue offset of the first", 1L, result.getQueueOffset());
        String[] ids = result.getOffsetMsgId().split(",");
        Report.same("offset message ids answered", 50, ids.length);
        List<MessageExt> stored = stored(queue, 51);
        for (int i = 0; i < 50; i++) {
            MessageExt message = stored.get(i + 1);
            Report.same("body", "batch " + i, Cluster.body(message));
            Report.same("keys", "key" + i, message.getKeys());
            Report.same("tags", i % 2 == 0 ? "even" : "odd", message.getTags());
            Report.same("offset message id", ids[i], Queries.offsetId(message));
            Report.same("queue offset", i + 1L, message.getQueueOffset());
        }
    }

    private void everyField() throws Exception {
        MessageQueue queue = onlyQueue("fields");
        Message message = new Message(queue.getTopic(), "a-tag", "key1 key2", 7, "Grüße, 世界".getBytes("UTF-8"), true);
        message.putUserProperty("colour", "größer=grün");
        message.setBuyerId("buyer");
        SendResult result = producer.send(message);
        MessageExt stored = stored(queue, 1).get(0);
        Report.same("body", "Grüße, 世界", Cluster.body(stored));
        Report.same("tags", "a-tag", stored.getTags());
        Report.same("keys", "key1 key2", stored.getKeys());
        Report.same("flag", 7, stored.getFlag());
        Report.same("property", "größer=grün", stored.getUserProperty("colour"));
        Report.same("buyer", "buyer", stored.getBuyerId());
        Report.same("unique id", result.getMsgId(), stored.getMsgId());
        Report.same("offset message id", result.getOffsetMsgId(), Queries.offsetId(stored));
        Report.same("cluster property", "DefaultCluster", stored.getProperty("CLUSTER"));
        Report.same("reconsume times", 0, stored.getReconsumeTimes());
        Report.require(Math.abs(stored.getStoreTimestamp() - System.currentTimeMillis()) < 60_000, "store time is not now");
        Report.require(stored.getBornTimestamp() > 0 && stored.getBornHostString().equals("127.0.0.1"), "born time or host");
    }

    private void compressed() throws Exception {
        MessageQueue queue = onlyQueue("compressed");
        String body = "compress me ".repeat(64 * 1024 / 12);
        producer.send(Cluster.message(queue.getTopic(), body));
        MessageExt stored = stored(queue, 1).get(0);
        Report.same("body", body, Cluster.body(stored));
        Report.require(stored.getStoreSize() < body.length() / 4, "stored in " + stored.getStoreSize() + " bytes: not compressed");
    }

    private void vip() throws Exception {
        MessageQueue queue = onlyQueue("vip");
        DefaultMQProducer vip = cluster.configured(new DefaultMQProducer(cluster.name("vip_producer"), Keys.HOOK));
        vip.setVipChannelEnabled(true);
        vip.start();
        cluster.endLater(vip::shutdown);
        Report.same("status", SendStatus.SEND_OK, vip.send(Cluster.message(queue.getTopic(), "vip")).getSendStatus());
        Report.same("body", "vip", Cluster.body(stored(queue, 1).get(0)));
    }

    /** The one warning this program provokes: the client looks for the route first and logs that there is none. */
    private void autoCreated() throws Exception {
        String topic = cluster.name("AutoCreated");
        SendResult result = producer.send(Cluster.message(topic, "first"));
        Report.same("status", SendStatus.SEND_OK, result.getSendStatus());
        cluster.awaitListed(topic);
        Report.same("queues", 4, cluster.admin.examineTopicRouteInfo(topic).getQueueDatas().get(0).getWriteQueueNums());
        Report.same("topic", topic, result.getMessageQueue().getTopic());
    }

    private void transaction() throws Exception {
        MessageQueue queue = onlyQueue("transaction");
        TransactionMQProducer transactions = cluster.configured(new TransactionMQProducer(cluster.name("transactions"), Keys.HOOK));
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object keep) {
                return (Boolean) keep ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        transactions.start();
        cluster.endLater(transactions::shutdown);
        transactions.sendMessageInTransaction(Cluster.message(queue.getTopic(), "dropped"), false);
        transactions.sendMessageInTransaction(Cluster.message(queue.getTopic(), "kept"), true);
        Report.same("body", "kept", Cluster.body(stored(queue, 1).get(0)));
        Report.same("messages after commit and rollback", 1L, producer.maxOffset(queue));
    }
}
