import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Does what it is told: a request a line on stdin, `ID verb key=value ...` parted by tabs; an answer a line on stdout, `ID ok VALUE`
 * or `ID fail WHY`; and what happens to its clients as lines `- kind key=value ...`. The verbs are described in agents.py.
 */
final class Agent {
    private static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final ByteArrayOutputStream PRINTED = new ByteArrayOutputStream();

    private final String namesrv;
    private final String name;
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
    private final Map<String, Runnable> endings = new ConcurrentHashMap<>();
    private final Map<String, AtomicLong> lastGot = new ConcurrentHashMap<>();

    private Agent(String namesrv, String name) {
        this.namesrv = namesrv;
        this.name = name;
    }

    public static void main(String[] args) throws Exception {
        System.setOut(new PrintStream(PRINTED, true, StandardCharsets.UTF_8));
        System.setErr(System.out);
        Agent agent = new Agent(args[0], args[1]);
        ExecutorService pool = Executors.newCachedThreadPool();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        new DefaultMQProducer("first"); // from one thread, since 5.x sets up its log with the first client
        say("- ready");
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] fields = line.split("\t");
            Map<String, String> given = new HashMap<>();
            for (int i = 2; i < fields.length; i++) {
                given.put(fields[i].substring(0, fields[i].indexOf('=')), fields[i].substring(fields[i].indexOf('=') + 1));
            }
            pool.execute(() -> agent.answer(fields[0], fields[1], given));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void say(String line) {
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    private void answer(String id, String verb, Map<String, String> given) {
        try {
            say(id + "\tok\t" + run(verb, given));
        } catch (Throwable failure) {
            say(id + "\tfail\t" + failure.toString().replaceAll("\\s+", " "));
        }
    }

    private String run(String verb, Map<String, String> given) throws Exception {
        switch (verb) {
            case "produce":
                return produce(given);
            case "send":
                return send(given);
            case "request":
                return Cluster.body(producers.get(given.get("producer")).request(message(given), Long.parseLong(given.get("timeout"))));
            case "consume":
                return consume(given);
            case "lite":
                return lite(given);
            case "close":
                endings.remove(given.get("name")).run();
                return "";
            case "mqadmin":
                return mqadmin(given.get("line"));
            default:
                throw new IllegalArgumentException("no such verb: " + verb);
        }
    }

    /** Quick to notice what changes, so that no check waits for a poll of 30 s. */
    private <T extends ClientConfig> T configured(T client, Map<String, String> given) {
        client.setNamesrvAddr(namesrv);
        client.setInstanceName(name + "-" + given.get("name"));
        client.setPollNameServerInterval(Integer.parseInt(given.getOrDefault("poll", "2000")));
        client.setHeartbeatBrokerInterval(2_000);
        client.setPersistConsumerOffsetInterval(500);
        client.setMqClientApiTimeout(60_000); // a machine may be busy with other things
        if (given.containsKey("namespace")) {
            client.setNamespace(given.get("namespace"));
        }
        return client;
    }

    // ---------------------------------------------------------------- producers

    private String produce(Map<String, String> given) throws Exception {
        DefaultMQProducer producer;
        if (given.containsKey("transaction")) {
            TransactionMQProducer transactions = new TransactionMQProducer(given.get("group"), Keys.HOOK);
            transactions.setTransactionListener(new Decider(given.get("name")));
            producer = transactions;
        } else {
            producer = new DefaultMQProducer(given.get("group"), Keys.HOOK);
        }
        configured(producer, given).setSendMsgTimeout(Integer.parseInt(given.getOrDefault("timeout", "60000")));
        producer.start();
        producers.put(given.get("name"), producer);
        endings.put(given.get("name"), producer::shutdown);
        return "";
    }

    private static Message message(Map<String, String> given) {
        Message message = Cluster.message(given.get("topic"), given.get("body"));
        given.forEach((key, value) -> {
            if (key.startsWith("p.")) {
                message.putUserProperty(key.substring(2), value);
            }
        });
        if (given.containsKey("tags")) {
            message.setTags(given.get("tags"));
        }
        if (given.containsKey("keys")) {
            message.setKeys(given.get("keys"));
        }
        if (given.containsKey("delay")) {
            message.setDelayTimeLevel(Integer.parseInt(given.get("delay")));
        }
        if (given.containsKey("at")) {
            Versions.deliverAt(message, Long.parseLong(given.get("at")));
        }
        return message;
    }

    private String send(Map<String, String> given) throws Exception {
        DefaultMQProducer producer = producers.get(given.get("producer"));
        Message message = message(given);
        SendResult result;
        if (producer instanceof TransactionMQProducer) {
            result = ((TransactionMQProducer) producer).sendMessageInTransaction(message, null);
        } else if (given.containsKey("queue")) {
            int queue = Integer.parseInt(given.get("queue"));
            result = producer.send(message, (queues, each, key) -> queues.stream().filter(one -> one.getQueueId() == queue).findFirst().get(), null);
        } else {
            result = producer.send(message);
        }
        return result.getSendStatus() + " " + result.getMsgId();
    }

    /** A message's own properties say how its local transaction goes, and how it went when a broker asks. */
    private static final class Decider implements TransactionListener {
        private final String producer;

        Decider(String producer) {
            this.producer = producer;
        }

        private static LocalTransactionState state(String word) {
            return "commit".equals(word) ? LocalTransactionState.COMMIT_MESSAGE
                    : "rollback".equals(word) ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            say("- executed\tclient=" + producer + "\tbody=" + Cluster.body(message));
            while ("hang".equals(message.getUserProperty("local"))) {
                try {
                    Thread.sleep(1_000); // until this process is killed
                } catch (InterruptedException stopped) {
                    break;
                }
            }
            return state(message.getUserProperty("local"));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            say("- checked\tclient=" + producer + "\tbody=" + Cluster.body(message));
            return state(message.getUserProperty("checked"));
        }
    }

    // ---------------------------------------------------------------- consumers

    private String consume(Map<String, String> given) throws Exception {
        String client = given.get("name");
        lastGot.put(client, new AtomicLong());
        int failures = Integer.parseInt(given.getOrDefault("fail", "0"));
        DefaultMQPushConsumer consumer = configured(new DefaultMQPushConsumer(given.get("group"), Keys.HOOK, new AllocateMessageQueueAveragely()), given);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setAwaitTerminationMillisWhenShutdown(2_000);
        if (given.containsKey("retries")) {
            consumer.setMaxReconsumeTimes(Integer.parseInt(given.get("retries")));
        }
        if (given.containsKey("broadcasting")) {
            Versions.broadcasting(consumer);
        }
        if (given.containsKey("sql")) {
            consumer.subscribe(given.get("topic"), MessageSelector.bySql(given.get("sql")));
        } else {
            consumer.subscribe(given.get("topic"), given.getOrDefault("tags", "*"));
        }
        if (given.containsKey("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                lastGot.get(client).set(System.nanoTime());
                got(client, batch.get(0));
                work(given);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                MessageExt message = batch.get(0); // the batch size is 1 unless it is set
                got(client, message);
                if (given.containsKey("reply")) {
                    reply(given.get("reply"), message);
                }
                context.setDelayLevelWhenNextConsume(1); // again after 1 s
                return message.getReconsumeTimes() < failures ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        endings.put(client, () -> {
            if (given.containsKey("orderly")) {
                // Its shutdown gives the queues up while it is still at work on them, so let it come to rest first.
                consumer.suspend();
                rest(lastGot.get(client));
            }
            consumer.shutdown();
        });
        return "";
    }

    /** Returns when the consumer has been handed nothing for half a second, or after ten. */
    private static void rest(AtomicLong last) {
        try {
            for (int i = 0; i < 100 && System.nanoTime() - last.get() < 500_000_000L; i++) {
                Thread.sleep(100);
            }
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    private static void work(Map<String, String> given) {
        try {
            Thread.sleep(Long.parseLong(given.getOrDefault("work", "0")));
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    private void reply(String producer, MessageExt message) {
        try {
            Message reply = MessageUtil.createReplyMessage(message, ("re: " + Cluster.body(message)).getBytes(StandardCharsets.UTF_8));
            producers.get(producer).send(reply, 3_000);
        } catch (Exception failure) {
            say("- trouble\twhy=" + failure.toString().replaceAll("\\s+", " "));
        }
    }

    private static void got(String client, MessageExt message) {
        List<String> fields = new ArrayList<>(List.of("- got", "client=" + client, "topic=" + message.getTopic(), "body=" + Cluster.body(message),
                "queue=" + message.getQueueId(), "offset=" + message.getQueueOffset(), "times=" + message.getReconsumeTimes(),
                "tags=" + message.getTags(), "keys=" + message.getKeys(), "born=" + message.getBornTimestamp(),
                "stored=" + message.getStoreTimestamp(), "id=" + message.getMsgId(), "now=" + ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now())));
        for (String property : new TreeSet<>(message.getProperties().keySet())) {
            if (property.startsWith("u_")) {
                fields.add("p." + property + "=" + message.getProperty(property));
            }
        }
        say(String.join("\t", fields));
    }

    private String lite(Map<String, String> given) throws Exception {
        String client = given.get("name");
        DefaultLitePullConsumer consumer = configured(new DefaultLitePullConsumer(given.get("group"), Keys.HOOK), given);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommitIntervalMillis(1_000);
        consumer.subscribe(given.get("topic"), given.getOrDefault("tags", "*"));
        consumer.start();
        Thread poller = new Thread(() -> {
            while (!Thread.currentThread().isInterrupted()) {
                consumer.poll(200).forEach(message -> got(client, message));
            }
        });
        poller.start();
        endings.put(client, () -> {
            poller.interrupt();
            consumer.shutdown();
        });
        return "";
    }

    // ---------------------------------------------------------------- mqadmin

    private static synchronized String mqadmin(String line) {
        PRINTED.reset();
        MQAdminStartup.main0(line.split(" "), null);
        return PRINTED.toString(StandardCharsets.UTF_8).strip().replace("\t", " ").replace("\n", "\\n");
    }
}
