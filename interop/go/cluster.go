package main

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// cluster is the cluster under test: where it is, clients of it, topics in it.
type cluster struct {
	broker    string
	prefix    string
	resolver  primitive.NsResolver
	admin     admin.Admin
	producer  rocketmq.Producer
	reader    rocketmq.PullConsumer
	instances atomic.Int32
	mutex     sync.Mutex
	endings   []func() error
}

func connect(namesrv, broker, prefix string) (*cluster, error) {
	c := &cluster{broker: broker, prefix: prefix, resolver: primitive.NewPassthroughResolver([]string{namesrv})}
	var err error
	if c.admin, err = admin.NewAdmin(signedAdmin(admin.WithResolver(c.resolver))...); err != nil {
		return nil, err
	}
	if !keys.IsEmpty() {
		// This client's admin signs what it asks after its first question about groups, and not before.
		if _, err = c.admin.GetAllSubscriptionGroup(context.Background(), broker, 60*time.Second); err != nil {
			return nil, err
		}
	}
	if c.producer, err = c.newProducer("producer"); err != nil {
		return nil, err
	}
	c.reader, err = rocketmq.NewPullConsumer(signedConsumer(
		consumer.WithGroupName(c.name("reader")), consumer.WithInstance(c.instance()), consumer.WithNsResolver(c.resolver))...)
	if err != nil {
		return nil, err
	}
	readerTopic, err := c.topic("reader", 1) // a pull consumer does not start without a subscription
	if err != nil {
		return nil, err
	}
	if err = c.reader.Subscribe(readerTopic, consumer.MessageSelector{}); err != nil {
		return nil, err
	}
	if err = c.reader.Start(); err != nil {
		return nil, err
	}
	c.endLater(c.reader.Shutdown)
	return c, nil
}

// newProducer starts a producer that sends to the queue a message names, and runs until the cluster is closed.
func (c *cluster) newProducer(group string) (rocketmq.Producer, error) {
	p, err := rocketmq.NewProducer(signedProducer(
		producer.WithGroupName(c.name(group)), producer.WithInstanceName(c.instance()), producer.WithNsResolver(c.resolver),
		producer.WithSendMsgTimeout(60*time.Second), producer.WithQueueSelector(chosenOrRoundRobin{producer.NewRoundRobinQueueSelector()}))...)
	if err != nil {
		return nil, err
	}
	if err = p.Start(); err != nil {
		return nil, err
	}
	c.endLater(p.Shutdown)
	return p, nil
}

type chosenOrRoundRobin struct{ otherwise producer.QueueSelector }

func (s chosenOrRoundRobin) Select(message *primitive.Message, queues []*primitive.MessageQueue, lastBroker string) *primitive.MessageQueue {
	if message.Queue != nil {
		return message.Queue
	}
	return s.otherwise.Select(message, queues, lastBroker)
}

// instance names a client of its own connection.
func (c *cluster) instance() string {
	return fmt.Sprintf("%s-%d", c.prefix, c.instances.Add(1))
}

func (c *cluster) name(what string) string {
	return c.prefix + "_" + what
}

// endLater keeps a client running until the cluster is closed: while none shuts down, every warning counts.
func (c *cluster) endLater(shutdown func() error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.endings = append(c.endings, shutdown)
}

func (c *cluster) close() {
	for _, shutdown := range c.endings {
		_ = shutdown()
	}
	_ = c.admin.Close()
}

// topic creates a topic with that many queues and returns its name once the name server lists it.
func (c *cluster) topic(what string, queues int) (string, error) {
	topic := c.name(what)
	err := c.admin.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(c.broker),
		admin.WithReadQueueNums(queues), admin.WithWriteQueueNums(queues))
	if err != nil {
		return "", err
	}
	return topic, await(topic+" in the name server's list", func() bool { return c.listed(topic) })
}

func (c *cluster) listed(topic string) bool {
	list, err := c.admin.FetchAllTopicList(context.Background())
	if err != nil {
		return false
	}
	for _, each := range list.TopicList {
		if each == topic {
			return true
		}
	}
	return false
}

func (c *cluster) queues(topic string) ([]*primitive.MessageQueue, error) {
	queues, err := c.admin.FetchPublishMessageQueues(context.Background(), topic)
	sort.Slice(queues, func(i, j int) bool { return queues[i].QueueId < queues[j].QueueId })
	return queues, err
}

func (c *cluster) onlyQueue(what string) (*primitive.MessageQueue, error) {
	topic, err := c.topic(what, 1)
	if err != nil {
		return nil, err
	}
	queues, err := c.queues(topic)
	if err != nil {
		return nil, err
	}
	return queues[0], same("queues", 1, len(queues))
}

// stored pulls until it has that many messages of the queue, from its start.
func (c *cluster) stored(queue *primitive.MessageQueue, count int) ([]*primitive.MessageExt, error) {
	var found []*primitive.MessageExt
	var problem error
	err := await(fmt.Sprintf("%d messages in %s", count, queue), func() bool {
		result, err := c.reader.PullFrom(context.Background(), queue, int64(len(found)), 32)
		if err != nil {
			problem = err
			return true
		}
		if result.Status == primitive.PullFound {
			found = append(found, result.GetMessageExts()...)
		}
		return len(found) >= count
	})
	if problem != nil {
		return nil, problem
	}
	return found, err
}

func (c *cluster) sendAll(topic string, bodies []string) error {
	for _, body := range bodies {
		result, err := c.producer.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body)))
		if err != nil {
			return err
		}
		if err = same("status of "+body, primitive.SendOK, result.Status); err != nil {
			return err
		}
	}
	return nil
}

func bodies(stem string, count int) []string {
	all := make([]string, count)
	for i := range all {
		all[i] = fmt.Sprintf("%s %d", stem, i)
	}
	return all
}

// inbox collects what a consumer is handed.
type inbox struct {
	mutex    sync.Mutex
	messages []*primitive.MessageExt
}

func (b *inbox) consume(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.messages = append(b.messages, batch...)
	return consumer.ConsumeSuccess, nil
}

func (b *inbox) all() []*primitive.MessageExt {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return append([]*primitive.MessageExt(nil), b.messages...)
}

// missing lists the expected bodies that have not come.
func (b *inbox) missing(expected []string) []string {
	come := map[string]bool{}
	for _, message := range b.all() {
		come[string(message.Body)] = true
	}
	var missing []string
	for _, body := range expected {
		if !come[body] {
			missing = append(missing, body)
		}
	}
	return missing
}

func (b *inbox) awaitAll(expected []string) error {
	err := await("all consumed", func() bool {
		return len(b.all()) >= len(expected) && len(b.missing(expected)) == 0
	})
	if err != nil {
		missing := b.missing(expected)
		return fmt.Errorf("after 30 s %d of %d not consumed, such as %v", len(missing), len(expected), missing[:min(5, len(missing))])
	}
	return nil
}

func (b *inbox) awaitExactly(expected []string) error {
	if err := b.awaitAll(expected); err != nil {
		return err
	}
	return same("messages consumed", len(expected), len(b.all()))
}

type handler = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

// consumer starts a push consumer from the first message on; the caller ends it.
func (c *cluster) consumer(group, topic, tags string, handle handler, options ...consumer.Option) (rocketmq.PushConsumer, error) {
	options = append([]consumer.Option{
		consumer.WithGroupName(c.name(group)), consumer.WithInstance(c.instance()), consumer.WithNsResolver(c.resolver),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}, options...)
	member, err := rocketmq.NewPushConsumer(signedConsumer(options...)...)
	if err != nil {
		return nil, err
	}
	if err = member.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tags}, handle); err != nil {
		return nil, err
	}
	return member, member.Start()
}

// keepConsumer starts a push consumer that runs until the cluster is closed.
func (c *cluster) keepConsumer(group, topic, tags string, handle handler, options ...consumer.Option) error {
	member, err := c.consumer(group, topic, tags, handle, options...)
	if err != nil {
		return err
	}
	c.endLater(member.Shutdown)
	return nil
}
