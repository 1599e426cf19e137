import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * What Spark reads and writes, seen by a real client: messages of every kind with a note of each (`send`), and a note of
 * every message that a consumer was handed (`receive`). A note is a line of fields parted by tabs; bodies are in base64.
 */
final class SparkExchange {
    private final Cluster cluster;
    private final List<String> notes = new ArrayList<>();

    SparkExchange(Cluster cluster) {
        this.cluster = cluster;
    }

    // ---------------------------------------------------------------- send

    void send(String topic, boolean timed, Path manifest) throws Exception {
        Report.check("send: plain, compressed, batched", () -> {
            for (int i = 0; i < 12; i++) {
                Message message = message(topic, i, "plain " + i);
                note("plain", message, cluster.producer.send(message));
            }
            for (int i = 12; i < 16; i++) {
                Message message = message(topic, i, ("compress me, größer " + i + "; ").repeat(400)); // more than 4 KiB
                note("compressed", message, cluster.producer.send(message));
            }
            List<Message> batch = new ArrayList<>();
            for (int i = 16; i < 26; i++) {
                batch.add(message(topic, i, "batched " + i));
            }
            SendResult result = cluster.producer.send(batch);
            Report.same("status", SendStatus.SEND_OK, result.getSendStatus());
            String[] ids = result.getMsgId().split(",");
            String[] offsetIds = result.getOffsetMsgId().split(",");
            for (int i = 0; i < batch.size(); i++) {
                note("batched", batch.get(i), ids[i], offsetIds[i], result.getMessageQueue().getQueueId(), result.getQueueOffset() + i, "");
            }
        });
        Report.check("send: delayed", () -> {
            Message message = message(topic, 26, "delayed");
            message.setDelayTimeLevel(1);
            note("delayed", message, cluster.producer.send(message));
            if (timed) {
                message = message(topic, 27, "timed");
                Versions.deliverAt(message, System.currentTimeMillis() + 1_500);
                note("timed", message, cluster.producer.send(message));
            }
        });
        Report.check("send: in transactions", () -> transactions(topic));
        Files.write(manifest, notes, StandardCharsets.UTF_8);
    }

    private void transactions(String topic) throws Exception {
        TransactionMQProducer producer = cluster.configured(new TransactionMQProducer(cluster.name("transactions"), Keys.HOOK));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        cluster.endLater(producer::shutdown);
        for (int i = 28; i < 34; i++) {
            boolean commit = i % 3 != 0;
            Message message = message(topic, i, "in a transaction " + i);
            note(commit ? "committed" : "rolledback", message, producer.sendMessageInTransaction(message,
                    commit ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE));
        }
    }

    private static Message message(String topic, int number, String body) {
        Message message = new Message(topic, "abc".substring(number % 3, number % 3 + 1), "key" + number + " all", number, body.getBytes(StandardCharsets.UTF_8), true);
        message.putUserProperty("u_size", String.valueOf(number));
        message.putUserProperty("u_colour", number % 2 == 0 ? "grün" : "red = \"rot\"");
        return message;
    }

    private void note(String kind, Message message, SendResult result) {
        Report.same("status", SendStatus.SEND_OK, result.getSendStatus());
        note(kind, message, result.getMsgId(), result.getOffsetMsgId(), result.getMessageQueue().getQueueId(), result.getQueueOffset(),
                message.getTransactionId());
    }

    private void note(String kind, Message message, String id, String offsetId, int queue, long offset, String transaction) {
        notes.add(String.join("\t", kind, id, String.valueOf(offsetId), String.valueOf(queue), String.valueOf(offset), String.valueOf(transaction),
                message.getTags(), message.getKeys(), String.valueOf(message.getFlag()), message.getUserProperty("u_size"),
                message.getUserProperty("u_colour"), Base64.getEncoder().encodeToString(message.getBody())));
    }

    // ---------------------------------------------------------------- receive

    /** All of `STEM 0` to `STEM COUNT-1`, each once. */
    void receive(String topic, String stem, int count, Path manifest) {
        Report.check("receive: every row once", () -> {
            Cluster.Inbox inbox = new Cluster.Inbox();
            cluster.startPushConsumer(cluster.name("receivers"), topic, "*", inbox);
            inbox.awaitExactly(Cluster.bodies(stem + " ", 0, count));
            try (PrintStream out = new PrintStream(Files.newOutputStream(manifest), false, StandardCharsets.UTF_8)) {
                inbox.messages.forEach(message -> out.println(received(message)));
            }
        });
    }

    private static String received(MessageExt message) {
        List<String> fields = new ArrayList<>(List.of(Cluster.body(message), message.getMsgId(), String.valueOf(message.getQueueId()),
                String.valueOf(message.getQueueOffset()), String.valueOf(message.getTags()), String.valueOf(message.getKeys()),
                String.valueOf(message.getFlag()), String.valueOf(message.getBornTimestamp()), String.valueOf(message.getStoreTimestamp()),
                String.valueOf(message.getProperty("__SHARDINGKEY"))));
        Set<String> names = new TreeSet<>(message.getProperties().keySet());
        names.removeIf(name -> !name.startsWith("u_"));
        names.forEach(name -> fields.add(name + "=" + message.getProperty(name)));
        return String.join("\t", fields);
    }
}
