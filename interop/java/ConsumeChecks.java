import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Push consumers: concurrent, filtered, orderly, delayed, retried, broadcast. */
final class ConsumeChecks {
    private final Cluster cluster;

    ConsumeChecks(Cluster cluster) {
        this.cluster = cluster;
    }

    void plain() {
        Report.check("push consume, concurrent", this::concurrent);
        Report.check("push consume, new messages while waiting", this::longPoll);
        Report.check("push consume, filtered by tag", this::tagged);
        Report.check("push consume, filtered by SQL", this::sql);
        Report.check("broadcasting, each member gets all", this::broadcast);
    }

    void slow() {
        Report.check("push consume, delayed", this::delayed);
        Report.check("push consume, retried after a failure", this::retried);
        Report.check("push consume, orderly", this::orderly);
    }

    private void concurrent() throws Exception {
        String topic = cluster.topic("concurrent", 4);
        Set<String> bodies = Cluster.bodies("concurrent ", 0, 300);
        cluster.sendAll(topic, bodies);
        Cluster.Inbox inbox = new Cluster.Inbox();
        cluster.startPushConsumer(cluster.name("g_concurrent"), topic, "*", inbox);
        inbox.awaitExactly(bodies);
    }

    /** The consumer is waiting in a long poll when the message comes; a poll that is not woken would take 15 s and more. */
    private void longPoll() throws Exception {
        String topic = cluster.topic("long_poll", 1);
        Cluster.Inbox inbox = new Cluster.Inbox();
        cluster.startPushConsumer(cluster.name("g_long_poll"), topic, "*", inbox);
        int woken = 0;
        for (int i = 0; i < 10; i++) {
            String body = "poll " + i;
            cluster.sendAll(topic, Set.of(body));
            long begin = System.nanoTime();
            Report.await(body + " consumed", () -> inbox.bodies().contains(body));
            woken += System.nanoTime() - begin < TimeUnit.SECONDS.toNanos(10) ? 1 : 0;
        }
        Report.require(woken >= 5, "only " + woken + " of 10 messages came in less than 10 s"); // not all: a machine may be busy
    }

    private void tagged() throws Exception {
        String topic = cluster.topic("tagged", 2);
        Set<String> wanted = new TreeSet<>();
        for (int i = 0; i < 60; i++) {
            String tag = "tag" + i % 3;
            cluster.producer.send(new Message(topic, tag, ("tagged " + i).getBytes()));
            if (i % 3 != 1) {
                wanted.add("tagged " + i);
            }
        }
        Cluster.Inbox inbox = new Cluster.Inbox();
        cluster.startPushConsumer(cluster.name("g_tagged"), topic, "tag0 || tag2", inbox);
        inbox.awaitExactly(wanted);
    }

    private void sql() throws Exception {
        String topic = cluster.topic("sql", 2);
        Set<String> wanted = new TreeSet<>();
        for (int i = 0; i < 20; i++) {
            Message message = Cluster.message(topic, "sql " + i);
            message.putUserProperty("size", String.valueOf(i));
            message.putUserProperty("colour", i % 2 == 0 ? "red" : "blue");
            cluster.producer.send(message);
            if (i >= 5 && i % 2 == 0) {
                wanted.add("sql " + i);
            }
        }
        Cluster.Inbox inbox = new Cluster.Inbox();
        DefaultMQPushConsumer consumer = cluster.pushConsumer(cluster.name("g_sql"), topic, "*");
        consumer.unsubscribe(topic);
        consumer.subscribe(topic, org.apache.rocketmq.client.consumer.MessageSelector.bySql("size >= 5 AND colour = 'red'"));
        consumer.registerMessageListener(inbox);
        cluster.start(consumer);
        inbox.awaitExactly(wanted);
    }

    private void orderly() throws Exception {
        String topic = cluster.topic("orderly", 3);
        List<MessageQueue> queues = cluster.queues(topic);
        for (int i = 0; i < 90; i++) {
            cluster.producer.send(Cluster.message(topic, String.valueOf(i)), queues.get(i % 3));
        }
        Map<Integer, ConcurrentLinkedQueue<Integer>> seen = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = cluster.pushConsumer(cluster.name("g_orderly"), topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
            for (MessageExt message : batch) {
                seen.computeIfAbsent(message.getQueueId(), id -> new ConcurrentLinkedQueue<>()).add(Integer.valueOf(Cluster.body(message)));
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        cluster.start(consumer);
        Report.await("all 90 consumed", () -> seen.values().stream().mapToInt(ConcurrentLinkedQueue::size).sum() >= 90);
        for (int queue = 0; queue < 3; queue++) {
            List<Integer> order = new ArrayList<>();
            for (int i = queue; i < 90; i += 3) {
                order.add(i);
            }
            Report.same("order of queue " + queue, order, new ArrayList<>(seen.get(queue)));
        }
    }

    private void delayed() throws Exception {
        String topic = cluster.topic("delayed", 1);
        Message message = Cluster.message(topic, "delayed");
        message.setDelayTimeLevel(2); // 5 s
        long sent = System.currentTimeMillis();
        cluster.producer.send(message);
        Cluster.Inbox inbox = new Cluster.Inbox();
        cluster.startPushConsumer(cluster.name("g_delayed"), topic, "*", inbox);
        inbox.awaitExactly(Set.of("delayed"));
        MessageExt found = inbox.messages.peek();
        long took = found.getStoreTimestamp() - sent;
        Report.require(took >= 4_500 && took < 9_000, "delivered after " + took + " ms and not after 5 s");
        Report.same("topic", topic, found.getTopic());
    }

    private void retried() throws Exception {
        String topic = cluster.topic("retried", 1);
        ConcurrentLinkedQueue<Integer> times = new ConcurrentLinkedQueue<>();
        ConcurrentLinkedQueue<String> topics = new ConcurrentLinkedQueue<>();
        MessageListenerConcurrently failOnce = (batch, context) -> {
            context.setDelayLevelWhenNextConsume(1); // again after 1 s
            times.add(batch.get(0).getReconsumeTimes());
            topics.add(batch.get(0).getTopic());
            return batch.get(0).getReconsumeTimes() == 0 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
        cluster.sendAll(topic, Set.of("retried"));
        cluster.startPushConsumer(cluster.name("g_retried"), topic, "*", failOnce);
        Report.await("consumed again", () -> times.size() >= 2);
        Report.same("reconsume times", List.of(0, 1), new ArrayList<>(times));
        Report.same("topics", List.of(topic, topic), new ArrayList<>(topics));
    }

    private void broadcast() throws Exception {
        String topic = cluster.topic("broadcast", 4);
        List<Cluster.Inbox> inboxes = List.of(new Cluster.Inbox(), new Cluster.Inbox(), new Cluster.Inbox());
        for (Cluster.Inbox inbox : inboxes) {
            DefaultMQPushConsumer member = cluster.pushConsumer(cluster.name("g_broadcast"), topic, "*");
            Versions.broadcasting(member);
            member.registerMessageListener(inbox);
            cluster.start(member);
        }
        Set<String> bodies = Cluster.bodies("broadcast ", 0, 100);
        cluster.sendAll(topic, bodies);
        for (Cluster.Inbox inbox : inboxes) {
            inbox.awaitExactly(bodies);
        }
    }
}
