import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Messages of producers and a consumer that trace. Prints `traced WHAT UNIQUE_ID OFFSET_ID` of each message, and `consumed` when the
 * consumer is done with all, one of which it failed once. Ends when stdin does: traces are written some time later.
 */
final class Traced {
    private static final int MESSAGES = 3;

    private Traced() {
    }

    public static void main(String[] args) throws Exception {
        try (Cluster cluster = new Cluster(args[0], args[1])) {
            String topic = cluster.topic("traced", 2);
            DefaultMQProducer producer = cluster.configured(new DefaultMQProducer(cluster.name("sellers"), Keys.HOOK, true, null));
            producer.start();
            cluster.endLater(producer::shutdown);
            TransactionMQProducer payers = cluster.configured(
                    new TransactionMQProducer(null, cluster.name("payers"), Keys.HOOK, true, null));
            payers.setTransactionListener(new Committing());
            payers.start();
            cluster.endLater(payers::shutdown);

            say("plain", producer.send(new Message(topic, "a-tag", cluster.name("plain") + " shared", "plain".getBytes())));
            Message failing = new Message(topic, "a-tag", cluster.name("failing"), "failing".getBytes());
            failing.setDelayTimeLevel(1);
            say("failing", producer.send(failing));
            say("half", payers.sendMessageInTransaction(new Message(topic, "", cluster.name("half"), "half".getBytes()), null));

            Handler handler = new Handler();
            DefaultMQPushConsumer consumer = cluster.configured(new DefaultMQPushConsumer(
                    cluster.name("billing"), Keys.HOOK, new AllocateMessageQueueAveragely(), true, null));
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setAwaitTerminationMillisWhenShutdown(1_000);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(handler);
            cluster.start(consumer);
            Report.await("all consumed", () -> handler.done.size() == MESSAGES);
            System.out.println("consumed");
            while (System.in.read() >= 0) {
                continue;
            }
        }
        System.exit(0);
    }

    private static void say(String what, SendResult sent) {
        System.out.println("traced " + what + " " + sent.getMsgId() + " " + (sent.getOffsetMsgId() == null ? "-" : sent.getOffsetMsgId()));
    }

    private static final class Handler implements MessageListenerConcurrently {
        final ConcurrentHashMap<String, Integer> done = new ConcurrentHashMap<>();

        @Override
        public ConsumeConcurrentlyStatus consumeMessage(
                List<MessageExt> batch, org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext context) {
            for (MessageExt message : batch) {
                if (Cluster.body(message).equals("failing") && message.getReconsumeTimes() == 0) {
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                done.merge(message.getMsgId(), 1, Integer::sum);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }
    }

    private static final class Committing implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }
}
