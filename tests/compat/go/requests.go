// Requests that wait for replies, and the producers that send them.
package main

import (
	"context"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const requestTimeout = 15 * time.Second

func (m *members) startReplier(given command) error {
	options := append([]producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{given.NameServer})),
		producer.WithGroupName("repliers"),
		producer.WithInstanceName("replier-" + given.Member),
		producer.WithCredentials(given.account()),
	}, producing...)
	replier, err := rocketmq.NewProducer(options...)
	if err != nil {
		return err
	}
	m.repliers[given.Member] = replier
	return replier.Start()
}

// reply answers with the request's body behind a few words; the reply carries the request's serial.
func (m *members) reply(member string, request *primitive.MessageExt) {
	told := event{"event": "replied", "member": member, "serial": request.GetProperty("serial")}
	defer func() { show(told) }()
	answer, err := consumer.CreateReplyMessage(request, nil) // it would take a body for properties
	if err != nil {
		told["status"] = err.Error()
		return
	}
	answer.Body = append([]byte("reply to "), request.Body...)
	answer.WithProperty("serial", request.GetProperty("serial"))
	sent, err := m.repliers[member].SendSync(context.Background(), answer)
	if err != nil {
		told["status"] = err.Error()
		return
	}
	told["status"], told["offsetMsgId"] = resultOf(sent)["status"], sent.OffsetMsgID
}

func ask(sender rocketmq.Producer, given command, messages []*primitive.Message) ([]event, error) {
	replies := []event{}
	timeout := requestTimeout
	if given.Timeout > 0 {
		timeout = time.Duration(given.Timeout) * time.Millisecond
	}
	for _, message := range messages {
		reply, err := sender.Request(context.Background(), timeout, message)
		if err != nil {
			return nil, err
		}
		replies = append(replies, replyOf(reply))
	}
	return replies, nil
}

func askAsync(sender rocketmq.Producer, messages []*primitive.Message) ([]event, error) {
	replies := make([]event, len(messages))
	var missing sync.WaitGroup
	missing.Add(len(messages))
	for i, message := range messages {
		index := i
		var once sync.Once // the client calls back twice for one reply
		err := sender.RequestAsync(context.Background(), requestTimeout,
			func(_ context.Context, reply *primitive.Message, err error) {
				once.Do(func() {
					if err != nil {
						replies[index] = event{"error": err.Error()}
					} else {
						replies[index] = replyOf(reply)
					}
					missing.Done()
				})
			}, message)
		if err != nil {
			return nil, err
		}
	}
	missing.Wait()
	return replies, nil
}

func replyOf(reply *primitive.Message) event {
	return event{"topic": reply.Topic, "body": reply.Body, "properties": reply.GetProperties()}
}
