import java.util.Set;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;

/** Topics made, described and removed by a client. */
final class AdminChecks {
    private final Cluster cluster;

    AdminChecks(Cluster cluster) {
        this.cluster = cluster;
    }

    void run() {
        Report.check("create a topic (admin)", this::create);
        Report.check("create a topic (producer)", this::createByProducer);
        Report.check("describe a topic (admin)", this::describe);
        Report.check("delete a topic (admin)", this::delete);
        Report.check("create and delete a group (admin)", this::group);
    }

    private void create() throws Exception {
        String topic = cluster.name("admin_create");
        cluster.admin.createAndUpdateTopicConfig(cluster.brokerAddress(), new TopicConfig(topic, 3, 5, Cluster.READ_WRITE));
        cluster.awaitListed(topic);
        var queue = cluster.admin.examineTopicRouteInfo(topic).getQueueDatas().get(0);
        Report.same("read queues", 3, queue.getReadQueueNums());
        Report.same("write queues", 5, queue.getWriteQueueNums());
        Report.same("permission", Cluster.READ_WRITE, queue.getPerm());
        Report.same("queues to send to", 5, cluster.producer.fetchPublishMessageQueues(topic).size());
    }

    private void createByProducer() throws Exception {
        String topic = cluster.name("producer_create");
        Versions.createTopic(cluster.producer, topic, 7);
        cluster.awaitListed(topic);
        Report.same("queues", 7, cluster.queues(topic).size());
    }

    private void describe() throws Exception {
        String topic = cluster.topic("admin_describe", 2);
        MessageQueue queue = cluster.queues(topic).get(1);
        for (String body : Set.of("one", "two", "three")) {
            cluster.producer.send(Cluster.message(topic, body), queue);
        }
        cluster.awaitMaxOffset(queue, 3);
        var offsets = cluster.admin.examineTopicStats(topic).getOffsetTable();
        Report.same("queues described", 2, offsets.size());
        Report.same("max offset", 3L, offsets.get(queue).getMaxOffset());
        Report.require(offsets.get(queue).getLastUpdateTimestamp() > 0, "no time of the last message");
        Report.same("max offset of the empty queue", 0L, offsets.get(cluster.queues(topic).get(0)).getMaxOffset());
    }

    private void delete() throws Exception {
        String topic = cluster.topic("admin_delete", 2);
        cluster.admin.deleteTopicInBroker(Set.of(cluster.brokerAddress()), topic);
        Versions.deleteTopicInNameServer(cluster.admin, cluster.namesrv, topic);
        Report.await(topic + " gone from the name server's list",
                () -> !cluster.admin.fetchAllTopicList().getTopicList().contains(topic));
    }

    private void group() throws Exception {
        String group = cluster.name("g_admin");
        String broker = cluster.brokerAddress();
        var all = cluster.admin.getAllSubscriptionGroup(broker, 5_000);
        var config = all.getSubscriptionGroupTable().values().iterator().next();
        config.setGroupName(group);
        config.setRetryMaxTimes(3);
        cluster.admin.createAndUpdateSubscriptionGroupConfig(broker, config);
        var made = cluster.admin.examineSubscriptionGroupConfig(broker, group);
        Report.require(made != null, "the group is not there after it was created");
        Report.same("retry times", 3, made.getRetryMaxTimes());
        cluster.admin.deleteSubscriptionGroup(broker, group, true);
        var left = cluster.admin.getAllSubscriptionGroup(broker, 5_000).getSubscriptionGroupTable();
        Report.require(!left.containsKey(group), "the group is still there after it was deleted");
    }
}
