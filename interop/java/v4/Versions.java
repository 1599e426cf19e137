import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What the 4.x client spells in its own way. */
final class Versions {
    private Versions() {
    }

    static void broadcasting(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void createTopic(DefaultMQProducer producer, String topic, int queues) throws MQClientException {
        producer.createTopic("TBW102", topic, queues);
    }

    static void deleteTopicInNameServer(DefaultMQAdminExt admin, String namesrv, String topic) throws Exception {
        admin.deleteTopicInNameServer(Set.of(namesrv), topic, "DefaultCluster");
    }

    static void deliverAt(Message message, long at) {
        message.putUserProperty("TIMER_DELIVER_MS", String.valueOf(at)); // 4.x has no method for it
    }
}
