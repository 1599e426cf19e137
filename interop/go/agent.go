package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// agent does what it is told: a request a line on stdin, "ID verb key=value ..." parted by tabs; an answer a line on stdout,
// "ID ok VALUE" or "ID fail WHY"; and what happens to its clients as lines "- kind key=value ...". The verbs are described in
// agents.py.
type agent struct {
	resolver     primitive.NsResolver
	name         string
	mutex        sync.Mutex
	producers    map[string]rocketmq.Producer
	transactions map[string]rocketmq.TransactionProducer
	endings      map[string]func() error
}

func runAgent(namesrv, name string) {
	a := &agent{resolver: primitive.NewPassthroughResolver([]string{namesrv}), name: name, producers: map[string]rocketmq.Producer{},
		transactions: map[string]rocketmq.TransactionProducer{}, endings: map[string]func() error{}}
	say("- ready")
	requests := bufio.NewScanner(os.Stdin)
	for requests.Scan() {
		fields := strings.Split(requests.Text(), "\t")
		given := map[string]string{}
		for _, field := range fields[2:] {
			key, value, _ := strings.Cut(field, "=")
			given[key] = value
		}
		go func() {
			value, err := a.run(fields[1], given)
			if err != nil {
				say(fields[0], "fail", strings.Join(strings.Fields(err.Error()), " "))
				return
			}
			say(fields[0], "ok", value)
		}()
	}
}

func say(fields ...string) {
	output.Lock()
	defer output.Unlock()
	fmt.Println(strings.Join(fields, "\t"))
}

func (a *agent) run(verb string, given map[string]string) (string, error) {
	switch verb {
	case "produce":
		return "", a.produce(given)
	case "send":
		return a.send(given)
	case "request":
		return a.request(given)
	case "consume":
		return "", a.consume(given)
	case "close":
		a.mutex.Lock()
		end := a.endings[given["name"]]
		a.mutex.Unlock()
		return "", end()
	}
	return "", fmt.Errorf("no such verb: %s", verb)
}

func (a *agent) keep(name string, end func() error) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.endings[name] = end
}

func (a *agent) produce(given map[string]string) error {
	name := given["name"]
	options := []producer.Option{producer.WithGroupName(given["group"]), producer.WithInstanceName(a.name + "-" + name),
		producer.WithNsResolver(a.resolver), producer.WithSendMsgTimeout(60 * time.Second),
		producer.WithQueueSelector(chosenOrRoundRobin{producer.NewRoundRobinQueueSelector()})}
	if given["namespace"] != "" {
		options = append(options, producer.WithNamespace(given["namespace"]))
	}
	if given["transaction"] != "" {
		transactions, err := rocketmq.NewTransactionProducer(decider{name}, signedProducer(options...)...)
		if err != nil {
			return err
		}
		if err = transactions.Start(); err != nil {
			return err
		}
		a.keep(name, transactions.Shutdown)
		a.mutex.Lock()
		defer a.mutex.Unlock()
		a.transactions[name] = transactions
		return nil
	}
	plain, err := rocketmq.NewProducer(signedProducer(options...)...)
	if err != nil {
		return err
	}
	if err = plain.Start(); err != nil {
		return err
	}
	a.keep(name, plain.Shutdown)
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.producers[name] = plain
	return nil
}

func (a *agent) producer(name string) (rocketmq.Producer, rocketmq.TransactionProducer) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.producers[name], a.transactions[name]
}

func asked(given map[string]string) *primitive.Message {
	message := primitive.NewMessage(given["topic"], []byte(given["body"]))
	for key, value := range given {
		if property, is := strings.CutPrefix(key, "p."); is {
			message.WithProperty(property, value)
		}
	}
	if given["tags"] != "" {
		message.WithTag(given["tags"])
	}
	if given["keys"] != "" {
		message.WithKeys(strings.Fields(given["keys"]))
	}
	if level, err := strconv.Atoi(given["delay"]); err == nil {
		message.WithDelayTimeLevel(level)
	}
	if given["at"] != "" {
		message.WithProperty("TIMER_DELIVER_MS", given["at"]) // this client has no method for it
	}
	if queue, err := strconv.Atoi(given["queue"]); err == nil {
		message.Queue = &primitive.MessageQueue{Topic: given["topic"], BrokerName: given["broker"], QueueId: queue}
	}
	return message
}

func (a *agent) send(given map[string]string) (string, error) {
	plain, transactions := a.producer(given["producer"])
	var result *primitive.SendResult
	if transactions != nil {
		sent, err := transactions.SendMessageInTransaction(context.Background(), asked(given))
		if err != nil {
			return "", err
		}
		result = sent.SendResult
	} else {
		sent, err := plain.SendSync(context.Background(), asked(given))
		if err != nil {
			return "", err
		}
		result = sent
	}
	if result.Status != primitive.SendOK {
		return "", fmt.Errorf("status %v", result.Status)
	}
	return "SEND_OK " + result.MsgID, nil
}

func (a *agent) request(given map[string]string) (string, error) {
	plain, _ := a.producer(given["producer"])
	timeout, err := strconv.Atoi(given["timeout"])
	if err != nil {
		return "", err
	}
	reply, err := plain.Request(context.Background(), time.Duration(timeout)*time.Millisecond, asked(given))
	if err != nil {
		return "", err
	}
	return string(reply.Body), nil
}

// decider: a message's own properties say how its local transaction goes, and how it went when a broker asks.
type decider struct{ producer string }

func state(word string) primitive.LocalTransactionState {
	switch word {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (d decider) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	say("- executed", "client="+d.producer, "body="+string(message.Body))
	if message.GetProperty("local") == "hang" {
		select {} // until this process is killed
	}
	return state(message.GetProperty("local"))
}

func (d decider) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	say("- checked", "client="+d.producer, "body="+string(message.Body))
	return state(message.GetProperty("checked"))
}

func (a *agent) consume(given map[string]string) error {
	name := given["name"]
	failures, _ := strconv.Atoi(given["fail"]) // none is 0
	options := []consumer.Option{consumer.WithGroupName(given["group"]), consumer.WithInstance(a.name + "-" + name),
		consumer.WithNsResolver(a.resolver), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}
	if given["namespace"] != "" {
		options = append(options, consumer.WithNamespace(given["namespace"]))
	}
	if given["broadcasting"] != "" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if given["orderly"] != "" {
		options = append(options, consumer.WithConsumerOrder(true))
	}
	if retries, err := strconv.Atoi(given["retries"]); err == nil {
		options = append(options, consumer.WithMaxReconsumeTimes(int32(retries)))
	}
	member, err := rocketmq.NewPushConsumer(signedConsumer(options...)...)
	if err != nil {
		return err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	if given["tags"] != "" {
		selector.Expression = given["tags"]
	}
	if given["sql"] != "" {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: given["sql"]}
	}
	handle := func(ctx context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range batch { // one, unless a batch size is set
			got(name, message)
			if work, err := strconv.Atoi(given["work"]); err == nil {
				time.Sleep(time.Duration(work) * time.Millisecond)
			}
			if given["reply"] != "" {
				a.reply(given["reply"], message)
			}
			if int(message.ReconsumeTimes) < failures {
				if concurrent, ok := primitive.GetConcurrentlyCtx(ctx); ok {
					concurrent.DelayLevelWhenNextConsume = 1 // again after 1 s
				}
				return consumer.ConsumeRetryLater, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	if err = member.Subscribe(given["topic"], selector, handle); err != nil {
		return err
	}
	a.keep(name, member.Shutdown)
	return member.Start()
}

func (a *agent) reply(name string, message *primitive.MessageExt) {
	plain, _ := a.producer(name)
	answer, err := consumer.CreateReplyMessage(message, nil)
	if err == nil {
		answer.Body = []byte("re: " + string(message.Body)) // v2.1.2 takes the body it is given for properties
		_, err = plain.SendSync(context.Background(), answer)
	}
	if err != nil {
		say("- trouble", "why="+err.Error())
	}
}

func got(name string, message *primitive.MessageExt) {
	fields := []string{"- got", "client=" + name, "topic=" + message.Topic, "body=" + string(message.Body),
		fmt.Sprint("queue=", message.Queue.QueueId), fmt.Sprint("offset=", message.QueueOffset), fmt.Sprint("times=", message.ReconsumeTimes),
		"tags=" + message.GetTags(), "keys=" + message.GetKeys(), fmt.Sprint("born=", message.BornTimestamp),
		fmt.Sprint("stored=", message.StoreTimestamp), "id=" + message.MsgId, fmt.Sprint("now=", time.Now().UnixMicro())}
	var properties []string
	for key, value := range message.GetProperties() {
		if strings.HasPrefix(key, "u_") {
			properties = append(properties, "p."+key+"="+value)
		}
	}
	slices.Sort(properties)
	say(append(fields, properties...)...)
}
