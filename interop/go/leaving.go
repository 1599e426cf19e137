package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

const rebalanceQueues = 8

// group is a consumer group whose members join and leave while messages keep coming. This client does not say which queues
// a member holds, so a share is measured: by who is handed which queue's messages.
type group struct {
	c       *cluster
	topic   string
	queues  []*primitive.MessageQueue
	inbox   inbox
	members []member
	joined  int
	mutex   sync.Mutex
	holder  map[int]int // queue -> member that was last handed a message of it in this round
	round   string
}

type member struct {
	id     int
	client rocketmq.PushConsumer
}

func (c *cluster) joinAndLeave() {
	check("members join and leave while running, nothing lost", func() error {
		topic, err := c.topic("rebalance", rebalanceQueues)
		if err != nil {
			return err
		}
		queues, err := c.queues(topic)
		if err != nil {
			return err
		}
		return (&group{c: c, topic: topic, queues: queues}).joinAndLeave()
	})
}

func (g *group) joinAndLeave() error {
	stop, stopped := make(chan struct{}), make(chan error, 1)
	var sent []string
	var count atomic.Int32
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				stopped <- nil
				return
			case <-time.After(5 * time.Millisecond): // a steady trickle, so that every step happens under traffic
			}
			body := fmt.Sprintf("rebalance %d", i)
			if err := g.c.sendAll(g.topic, []string{body}); err != nil {
				stopped <- err
				return
			}
			sent = append(sent, body)
			count.Add(1)
		}
	}()
	defer func() {
		for _, each := range g.members {
			_ = each.client.Shutdown()
		}
	}()
	steps := func() error {
		for _, step := range []struct {
			do     func() error
			shares []int
		}{
			{g.join, []int{8}}, {g.join, []int{4, 4}}, {g.join, []int{2, 3, 3}},
			{g.leave, []int{4, 4}}, {g.join, []int{2, 3, 3}}, {g.leave, []int{4, 4}}, {g.leave, []int{8}},
		} {
			if err := step.do(); err != nil {
				return err
			}
			if err := g.awaitShares(step.shares); err != nil {
				return err
			}
			before := count.Load()
			if err := await("25 more messages sent", func() bool { return count.Load() >= before+25 }); err != nil {
				return err
			}
		}
		return nil
	}()
	close(stop)
	if err := errors.Join(steps, <-stopped); err != nil {
		return err
	}
	return g.inbox.awaitAll(sent)
}

func (g *group) join() error {
	g.joined++
	id := g.joined
	client, err := g.c.consumer("g_rebalance", g.topic, "*", func(ctx context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		g.mutex.Lock()
		for _, message := range batch {
			if string(message.Body) == g.round {
				g.holder[message.Queue.QueueId] = id
			}
		}
		g.mutex.Unlock()
		return g.inbox.consume(ctx, batch...)
	})
	g.members = append(g.members, member{id, client})
	return err
}

// leave shuts the eldest member down.
func (g *group) leave() error {
	eldest := g.members[0]
	g.members = g.members[1:]
	return eldest.client.Shutdown()
}

// awaitShares sends a message to every queue, round after round, until the members that are handed them hold shares of
// these sizes (sorted).
func (g *group) awaitShares(sizes []int) error {
	deadline := time.Now().Add(patience)
	for round := 0; ; round++ {
		g.mutex.Lock()
		g.round = fmt.Sprintf("round %d of %v by %d", round, sizes, g.joined)
		g.holder = map[int]int{}
		g.mutex.Unlock()
		for _, queue := range g.queues {
			message := primitive.NewMessage(g.topic, []byte(g.round))
			message.Queue = queue
			if _, err := g.c.producer.SendSync(context.Background(), message); err != nil {
				return err
			}
		}
		limit := 2*time.Second + time.Duration(round)*500*time.Millisecond // a slow machine gets more in each round
		covered := awaitFor(limit, "every queue's message consumed", func() bool { return len(g.shares()) > 0 && sum(g.shares()) == rebalanceQueues })
		if covered == nil && fmt.Sprint(g.shares()) == fmt.Sprint(sizes) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s the shares are %v and not %v", patience, g.shares(), sizes)
		}
	}
}

func (g *group) shares() []int {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	counts := map[int]int{}
	for _, id := range g.holder {
		counts[id]++
	}
	var sizes []int
	for _, count := range counts {
		sizes = append(sizes, count)
	}
	sort.Ints(sizes)
	return sizes
}

func sum(numbers []int) int {
	total := 0
	for _, number := range numbers {
		total += number
	}
	return total
}

func (c *cluster) restart() {
	check("push consumer restarted, goes on where it was", func() error {
		topic, err := c.topic("restarted", 2)
		if err != nil {
			return err
		}
		for round := range 3 {
			expected := bodies(fmt.Sprintf("round %d", round), 40)
			if err = c.sendAll(topic, expected); err != nil {
				return err
			}
			box := &inbox{}
			member, err := c.consumer("g_restarted", topic, "*", box.consume)
			if err != nil {
				return err
			}
			err = box.awaitExactly(expected)
			if err = errors.Join(err, member.Shutdown()); err != nil {
				return err
			}
		}
		return nil
	})
}
