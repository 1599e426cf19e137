package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func (c *cluster) adminChecks() {
	check("create a topic (admin)", func() error {
		topic, err := c.topic("admin_create", 5)
		if err != nil {
			return err
		}
		queues, err := c.queues(topic)
		return errors.Join(err, same("queues", 5, len(queues)))
	})
	check("delete a topic (admin)", func() error {
		topic, err := c.topic("admin_delete", 2)
		if err != nil {
			return err
		}
		if err = c.admin.DeleteTopic(context.Background(), admin.WithTopicDelete(topic), admin.WithBrokerAddrDelete(c.broker)); err != nil {
			return err
		}
		return await(topic+" gone from the name server's list", func() bool { return !c.listed(topic) })
	})
	check("list groups (admin)", func() error {
		groups, err := c.admin.GetAllSubscriptionGroup(context.Background(), c.broker, 5*time.Second)
		if err != nil {
			return err
		}
		if _, there := groups.SubscriptionGroupTable["SELF_TEST_C_GROUP"]; !there {
			return fmt.Errorf("SELF_TEST_C_GROUP is not among the %d groups", len(groups.SubscriptionGroupTable))
		}
		return nil
	})
}

func (c *cluster) sendChecks() {
	check("send sync", c.sendSync)
	check("send async", c.sendAsync)
	check("send oneway", c.sendOneway)
	check("send batch", c.sendBatch)
	check("send keys, tags, properties", c.sendFields)
	check("send compressed (64 KiB)", c.sendCompressed)
	check("send to a topic created by sending", c.sendToNewTopic)
	check("send in a transaction, commit and rollback", c.sendInTransaction)
	check("pull consumer, pull from an offset", c.pullFrom)
}

func (c *cluster) sendSync() error {
	queue, err := c.onlyQueue("sync")
	if err != nil {
		return err
	}
	for i := range 20 {
		result, err := c.producer.SendSync(context.Background(), primitive.NewMessage(queue.Topic, fmt.Appendf(nil, "sync %d", i)))
		if err != nil {
			return err
		}
		err = errors.Join(same("status", primitive.SendOK, result.Status), same("queue offset", int64(i), result.QueueOffset),
			same("length of the offset message id", 32, len(result.OffsetMsgID)), same("region", "DefaultRegion", result.RegionID))
		if err != nil {
			return err
		}
	}
	stored, err := c.stored(queue, 20)
	if err != nil {
		return err
	}
	for i, message := range stored {
		if err = same("body", fmt.Sprintf("sync %d", i), string(message.Body)); err != nil {
			return err
		}
	}
	return nil
}

// expect compares the bodies in the queue, in any order, with the expected ones.
func (c *cluster) expect(queue *primitive.MessageQueue, expected []string) error {
	stored, err := c.stored(queue, len(expected))
	if err != nil {
		return err
	}
	found := make([]string, len(stored))
	for i, message := range stored {
		found[i] = string(message.Body)
	}
	sort.Strings(found)
	sort.Strings(expected)
	return same("bodies", strings.Join(expected, ", "), strings.Join(found, ", "))
}

func (c *cluster) sendAsync() error {
	queue, err := c.onlyQueue("async")
	if err != nil {
		return err
	}
	answers := make(chan error, 200)
	for _, body := range bodies("async", 200) {
		err = c.producer.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			if err == nil && result.Status != primitive.SendOK {
				err = fmt.Errorf("status %v", result.Status)
			}
			answers <- err
		}, primitive.NewMessage(queue.Topic, []byte(body)))
		if err != nil {
			return err
		}
	}
	for i := range 200 {
		select {
		case err = <-answers:
			if err != nil {
				return err
			}
		case <-time.After(20 * time.Second):
			return fmt.Errorf("%d of 200 not answered", 200-i)
		}
	}
	return c.expect(queue, bodies("async", 200))
}

func (c *cluster) sendOneway() error {
	queue, err := c.onlyQueue("oneway")
	if err != nil {
		return err
	}
	for _, body := range bodies("oneway", 20) {
		if err = c.producer.SendOneWay(context.Background(), primitive.NewMessage(queue.Topic, []byte(body))); err != nil {
			return err
		}
	}
	return c.expect(queue, bodies("oneway", 20))
}

func (c *cluster) sendBatch() error {
	queue, err := c.onlyQueue("batch")
	if err != nil {
		return err
	}
	var batch []*primitive.Message
	for i, body := range bodies("batch", 50) {
		message := primitive.NewMessage(queue.Topic, []byte(body))
		message.WithKeys([]string{fmt.Sprintf("key%d", i)})
		message.WithTag([]string{"even", "odd"}[i%2])
		batch = append(batch, message)
	}
	result, err := c.producer.SendSync(context.Background(), batch...)
	if err != nil {
		return err
	}
	ids := strings.Split(result.OffsetMsgID, ",")
	err = errors.Join(same("status", primitive.SendOK, result.Status), same("queue offset of the first", 0, result.QueueOffset),
		same("offset message ids answered", 50, len(ids)))
	if err != nil {
		return err
	}
	stored, err := c.stored(queue, 50)
	if err != nil {
		return err
	}
	for i, message := range stored {
		err = errors.Join(same("body", fmt.Sprintf("batch %d", i), string(message.Body)), same("offset message id", ids[i], message.OffsetMsgId),
			same("keys", fmt.Sprintf("key%d", i), message.GetKeys()), same("tags", []string{"even", "odd"}[i%2], message.GetTags()),
			same("queue offset", int64(i), message.QueueOffset))
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) sendFields() error {
	queue, err := c.onlyQueue("fields")
	if err != nil {
		return err
	}
	message := primitive.NewMessage(queue.Topic, []byte("Grüße, 世界"))
	message.WithKeys([]string{c.name("key"), "other"}).WithTag("a-tag").WithProperty("colour", "größer=grün")
	message.Flag = 7
	result, err := c.producer.SendSync(context.Background(), message)
	if err != nil {
		return err
	}
	all, err := c.stored(queue, 1)
	if err != nil {
		return err
	}
	stored := all[0]
	err = errors.Join(same("body", "Grüße, 世界", string(stored.Body)), same("tags", "a-tag", stored.GetTags()),
		same("keys", c.name("key")+" other", stored.GetKeys()), same("property", "größer=grün", stored.GetProperty("colour")),
		same("flag", 7, stored.Flag), same("unique id", result.MsgID, stored.MsgId),
		same("offset message id", result.OffsetMsgID, stored.OffsetMsgId), same("cluster property", "DefaultCluster", stored.GetProperty("CLUSTER")))
	if err == nil {
		output.Lock()
		defer output.Unlock()
		fmt.Println("sent", queue.Topic, c.name("key"), result.OffsetMsgID, result.MsgID)
	}
	return err
}

func (c *cluster) sendCompressed() error {
	queue, err := c.onlyQueue("compressed")
	if err != nil {
		return err
	}
	body := bytes.Repeat([]byte("compress me "), 64*1024/12)
	if _, err = c.producer.SendSync(context.Background(), primitive.NewMessage(queue.Topic, body)); err != nil {
		return err
	}
	stored, err := c.stored(queue, 1)
	if err != nil {
		return err
	}
	if !bytes.Equal(body, stored[0].Body) {
		return fmt.Errorf("%d bytes back of %d, and different", len(stored[0].Body), len(body))
	}
	if int(stored[0].StoreSize) > len(body)/4 {
		return fmt.Errorf("stored in %d bytes: not compressed", stored[0].StoreSize)
	}
	return nil
}

// sendToNewTopic provokes the one warning we want: the client logs that it found no route. It shows that the log is kept.
func (c *cluster) sendToNewTopic() error {
	topic := c.name("AutoCreated")
	if err := c.sendAll(topic, []string{"first"}); err != nil {
		return err
	}
	return await(topic+" in the name server's list", func() bool { return c.listed(topic) })
}

type commitIfKept struct{}

func (commitIfKept) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	if string(message.Body) == "kept" {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func (commitIfKept) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	return primitive.UnknowState
}

func (c *cluster) sendInTransaction() error {
	queue, err := c.onlyQueue("transaction")
	if err != nil {
		return err
	}
	transactions, err := rocketmq.NewTransactionProducer(commitIfKept{}, signedProducer(
		producer.WithGroupName(c.name("transactions")), producer.WithInstanceName(c.instance()), producer.WithNsResolver(c.resolver))...)
	if err != nil {
		return err
	}
	if err = transactions.Start(); err != nil {
		return err
	}
	c.endLater(transactions.Shutdown)
	for _, body := range []string{"dropped", "kept"} {
		if _, err = transactions.SendMessageInTransaction(context.Background(), primitive.NewMessage(queue.Topic, []byte(body))); err != nil {
			return err
		}
	}
	return c.expect(queue, []string{"kept"})
}

func (c *cluster) pullFrom() error {
	queue, err := c.onlyQueue("pull")
	if err != nil {
		return err
	}
	if err = c.sendAll(queue.Topic, bodies("pull", 10)); err != nil {
		return err
	}
	if _, err = c.stored(queue, 10); err != nil {
		return err
	}
	result, err := c.reader.PullFrom(context.Background(), queue, 4, 3)
	if err != nil {
		return err
	}
	return errors.Join(same("status", primitive.PullFound, result.Status), same("next offset", 7, result.NextBeginOffset),
		same("min offset", 0, result.MinOffset), same("max offset", 10, result.MaxOffset),
		same("messages", 3, len(result.GetMessageExts())), same("first", "pull 4", string(result.GetMessageExts()[0].Body)))
}

func (c *cluster) consumeChecks() {
	check("push consume, concurrent", func() error {
		topic, err := c.topic("concurrent", 4)
		if err != nil {
			return err
		}
		if err = c.sendAll(topic, bodies("concurrent", 300)); err != nil {
			return err
		}
		box := &inbox{}
		if err = c.keepConsumer("g_concurrent", topic, "*", box.consume); err != nil {
			return err
		}
		return box.awaitExactly(bodies("concurrent", 300))
	})
	check("push consume, new messages while waiting", c.longPoll)
	check("push consume, filtered by tag", c.filtered)
	check("broadcasting, each member gets all", c.broadcast)
	check("push consume, orderly", c.orderly)
}

// longPoll sends when the consumer is waiting in a long poll; a poll that is not woken would take 15 s and more.
func (c *cluster) longPoll() error {
	topic, err := c.topic("long_poll", 1)
	if err != nil {
		return err
	}
	box := &inbox{}
	if err = c.keepConsumer("g_long_poll", topic, "*", box.consume); err != nil {
		return err
	}
	woken := 0
	for _, body := range bodies("poll", 10) {
		if err = c.sendAll(topic, []string{body}); err != nil {
			return err
		}
		begin := time.Now()
		if err = await(body+" consumed", func() bool { return len(box.missing([]string{body})) == 0 }); err != nil {
			return err
		}
		if time.Since(begin) < 10*time.Second {
			woken++
		}
	}
	if woken < 5 { // not all: a machine may be busy
		return fmt.Errorf("only %d of 10 messages came in less than 10 s", woken)
	}
	return nil
}

func (c *cluster) filtered() error {
	topic, err := c.topic("tagged", 2)
	if err != nil {
		return err
	}
	var wanted []string
	for i, body := range bodies("tagged", 60) {
		message := primitive.NewMessage(topic, []byte(body)).WithTag(fmt.Sprintf("tag%d", i%3))
		if _, err = c.producer.SendSync(context.Background(), message); err != nil {
			return err
		}
		if i%3 != 1 {
			wanted = append(wanted, body)
		}
	}
	box := &inbox{}
	if err = c.keepConsumer("g_tagged", topic, "tag0 || tag2", box.consume); err != nil {
		return err
	}
	return box.awaitExactly(wanted)
}

func (c *cluster) broadcast() error {
	topic, err := c.topic("broadcast", 4)
	if err != nil {
		return err
	}
	boxes := []*inbox{{}, {}, {}}
	for _, box := range boxes {
		if err = c.keepConsumer("g_broadcast", topic, "*", box.consume, consumer.WithConsumerModel(consumer.BroadCasting)); err != nil {
			return err
		}
	}
	if err = c.sendAll(topic, bodies("broadcast", 100)); err != nil {
		return err
	}
	for _, box := range boxes {
		if err = box.awaitExactly(bodies("broadcast", 100)); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) orderly() error {
	topic, err := c.topic("orderly", 3)
	if err != nil {
		return err
	}
	queues, err := c.queues(topic)
	if err != nil {
		return err
	}
	for i := range 90 {
		message := primitive.NewMessage(topic, fmt.Append(nil, i))
		message.Queue = queues[i%3]
		if _, err = c.producer.SendSync(context.Background(), message); err != nil {
			return err
		}
	}
	box := &inbox{}
	if err = c.keepConsumer("g_orderly", topic, "*", box.consume, consumer.WithConsumerOrder(true)); err != nil {
		return err
	}
	if err = await("all 90 consumed", func() bool { return len(box.all()) >= 90 }); err != nil {
		return err
	}
	next := []int{0, 1, 2}
	for _, message := range box.all() {
		id := message.Queue.QueueId
		if err = same(fmt.Sprintf("order of queue %d", id), fmt.Sprint(next[id]), string(message.Body)); err != nil {
			return err
		}
		next[id] += 3
	}
	return nil
}

func (c *cluster) slowChecks() {
	check("push consume, delayed", c.delayed)
	check("push consume, retried after a failure", c.retried)
}

func (c *cluster) delayed() error {
	topic, err := c.topic("delayed", 1)
	if err != nil {
		return err
	}
	sent := time.Now().UnixMilli()
	message := primitive.NewMessage(topic, []byte("delayed")).WithDelayTimeLevel(2) // 5 s
	if _, err = c.producer.SendSync(context.Background(), message); err != nil {
		return err
	}
	box := &inbox{}
	if err = c.keepConsumer("g_delayed", topic, "*", box.consume); err != nil {
		return err
	}
	if err = box.awaitExactly([]string{"delayed"}); err != nil {
		return err
	}
	if took := box.all()[0].StoreTimestamp - sent; took < 4_500 || took > 9_000 {
		return fmt.Errorf("delivered after %d ms and not after 5 s", took)
	}
	return nil
}

func (c *cluster) retried() error {
	topic, err := c.topic("retried", 1)
	if err != nil {
		return err
	}
	if err = c.sendAll(topic, []string{"retried"}); err != nil {
		return err
	}
	var mutex sync.Mutex
	var times []int32
	failOnce := func(ctx context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mutex.Lock()
		defer mutex.Unlock()
		times = append(times, batch[0].ReconsumeTimes)
		if batch[0].ReconsumeTimes > 0 {
			return consumer.ConsumeSuccess, nil
		}
		if concurrent, ok := primitive.GetConcurrentlyCtx(ctx); ok {
			concurrent.DelayLevelWhenNextConsume = 1 // again after 1 s
		}
		return consumer.ConsumeRetryLater, nil
	}
	if err = c.keepConsumer("g_retried", topic, "*", failOnce); err != nil {
		return err
	}
	seen := func() string {
		mutex.Lock()
		defer mutex.Unlock()
		return fmt.Sprint(times)
	}
	// This client reads the route of the retry topic with its poll of 30 s, and begins to listen there after it.
	if err = await("consumed again", func() bool { return seen() != "[]" && seen() != "[0]" }); err != nil {
		return err
	}
	return same("reconsume times", "[0 1]", seen())
}
