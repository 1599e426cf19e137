import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that leave: what they did must outlive them, and the others must take over. */
final class Leaving {
    private static final int QUEUES = 8;

    private final Cluster cluster;

    Leaving(Cluster cluster) {
        this.cluster = cluster;
    }

    void joinAndLeave() {
        Report.check("members join and leave while running, nothing lost", new Group()::joinAndLeave);
    }

    void restartedPush() {
        Report.check("push consumer restarted, goes on where it was", this::restartPush);
    }

    void restartedLitePull() {
        Report.check("lite pull restarted, goes on where it was", this::restartLitePull);
    }

    private void restartPush() throws Exception {
        String topic = cluster.topic("restarted", 2);
        for (int round = 0; round < 3; round++) {
            Set<String> bodies = Cluster.bodies("round " + round + " ", 0, 40);
            cluster.sendAll(topic, bodies);
            Cluster.Inbox inbox = new Cluster.Inbox();
            DefaultMQPushConsumer consumer = cluster.pushConsumer(cluster.name("g_restarted"), topic, "*");
            consumer.registerMessageListener(inbox);
            consumer.start();
            try {
                inbox.awaitExactly(bodies);
            } finally {
                consumer.shutdown();
            }
        }
    }

    private void restartLitePull() throws Exception {
        String topic = cluster.topic("lite_restarted", 4);
        String group = cluster.name("g_lite_restarted");
        for (int round = 0; round < 2; round++) {
            Set<String> bodies = Cluster.bodies("lite " + round + " ", 0, 60);
            cluster.sendAll(topic, bodies);
            DefaultLitePullConsumer consumer = cluster.configured(new DefaultLitePullConsumer(group, Keys.HOOK));
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setAutoCommit(false);
            consumer.subscribe(topic, "*");
            consumer.start();
            try {
                PullChecks.pollExactly(consumer, bodies);
                consumer.commitSync(); // in memory; a timer takes it to the broker
                long end = 60L * (round + 1);
                Report.await("offsets of " + end + " messages at the broker", () -> committed(group, topic) == end);
            } finally {
                consumer.shutdown();
            }
        }
    }

    private long committed(String group, String topic) throws Exception {
        long sum = 0;
        for (var each : cluster.admin.examineConsumeStats(group, topic).getOffsetTable().values()) {
            sum += each.getConsumerOffset();
        }
        return sum;
    }

    /** A group whose members join and leave while messages keep coming. */
    private final class Group {
        private final Cluster.Inbox inbox = new Cluster.Inbox();
        private final List<DefaultMQPushConsumer> members = new ArrayList<>();
        private final Set<String> sent = new ConcurrentSkipListSet<>();
        private final AtomicBoolean stop = new AtomicBoolean();
        private final AtomicReference<Throwable> problem = new AtomicReference<>();
        private String topic;

        /** No message is lost, and at every step the queues are shared out whole and evenly. */
        void joinAndLeave() throws Exception {
            topic = cluster.topic("rebalance", QUEUES);
            Thread sender = new Thread(this::send);
            sender.start();
            try {
                join();
                awaitShares(8);
                join();
                awaitShares(4, 4);
                join();
                awaitShares(2, 3, 3);
                members.remove(0).shutdown();
                awaitShares(4, 4);
                join();
                awaitShares(2, 3, 3);
                members.remove(1).shutdown();
                members.remove(0).shutdown();
                awaitShares(8);
                stop.set(true);
                sender.join();
                Report.require(problem.get() == null, "sending meanwhile: " + problem.get());
                inbox.awaitAll(new TreeSet<>(sent));
            } finally {
                stop.set(true);
                members.forEach(DefaultMQPushConsumer::shutdown);
            }
        }

        private void send() {
            try {
                for (int i = 0; !stop.get(); i++) {
                    SendResult result = cluster.producer.send(Cluster.message(topic, "rebalance " + i));
                    Report.same("status", SendStatus.SEND_OK, result.getSendStatus());
                    sent.add("rebalance " + i);
                    Thread.sleep(2); // a steady trickle, so that every step happens under traffic
                }
            } catch (Exception | AssertionError failure) {
                problem.set(failure);
            }
        }

        private void join() throws Exception {
            DefaultMQPushConsumer member = cluster.pushConsumer(cluster.name("g_rebalance"), topic, "*");
            member.registerMessageListener(inbox);
            member.start();
            members.add(member);
        }

        /** Waits until the shares have these sizes (sorted) and cover every queue. */
        private void awaitShares(Integer... sizes) throws Exception {
            try {
                Report.await("shared out", () -> shares().equals(Arrays.asList(sizes)) && covered() == QUEUES);
            } catch (AssertionError late) {
                throw new AssertionError("the shares are still " + shares() + " and not " + Arrays.asList(sizes)
                        + ", " + covered() + " of " + QUEUES + " queues covered");
            }
            int before = sent.size();
            Report.await("25 more messages sent", () -> sent.size() >= before + 25 || problem.get() != null);
        }

        private List<Integer> shares() {
            List<Integer> sizes = new ArrayList<>();
            members.forEach(member -> sizes.add(share(member).size()));
            sizes.sort(null);
            return sizes;
        }

        private int covered() {
            Set<MessageQueue> all = new TreeSet<>();
            members.forEach(member -> all.addAll(share(member)));
            return all.size();
        }

        private Set<MessageQueue> share(DefaultMQPushConsumer member) {
            var table = member.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable();
            Set<MessageQueue> queues = new TreeSet<>(table.keySet());
            queues.removeIf(queue -> !queue.getTopic().equals(topic)); // each member also holds a share of the retry topic
            return queues;
        }
    }
}
