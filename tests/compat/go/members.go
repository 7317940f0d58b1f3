// Members of consumer groups: each prints the queues it is given and every message it gets.
package main

import (
	"context"
	"strings"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

type members struct {
	consumers map[string]rocketmq.PushConsumer
	repliers  map[string]rocketmq.Producer
}

func newMembers() *members {
	return &members{consumers: map[string]rocketmq.PushConsumer{}, repliers: map[string]rocketmq.Producer{}}
}

func (m *members) join(given command) error {
	options := append([]consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{given.NameServer})),
		consumer.WithGroupName(given.Group),
		consumer.WithInstance(given.Member),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumeGoroutineNums(1),
		consumer.WithStrategy(toldStrategy(given.Member, given.Topic)),
		consumer.WithConsumerOrder(given.Orderly),
		consumer.WithRebalanceLockInterval(time.Second),
		consumer.WithCredentials(given.account()),
	}, consuming...)
	if given.Namespace != "" {
		options = append(options, consumer.WithNamespace(given.Namespace))
	}
	if given.Broadcast {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if given.MaxReconsumeTimes != nil {
		options = append(options, consumer.WithMaxReconsumeTimes(*given.MaxReconsumeTimes))
	}
	if given.Trace {
		options = append(options, consumer.WithTrace(traced(given)))
	}
	member, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	if given.Replies {
		if err := m.startReplier(given); err != nil {
			return err
		}
	}
	err = member.Subscribe(given.Topic,
		consumer.MessageSelector{Type: consumer.ExpressionType(given.Kind), Expression: given.Expression},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				show(received(given.Member, message))
				if given.Replies {
					m.reply(given.Member, message)
				}
			}
			time.Sleep(time.Duration(given.Pause) * time.Millisecond)
			if given.Fails {
				return consumer.ConsumeRetryLater, nil
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return err
	}
	if err := member.Start(); err != nil {
		return err
	}
	m.consumers[given.Member] = member
	show(event{"event": "joined", "id": given.ID})
	return nil
}

func (m *members) leave(given command) error {
	if err := m.consumers[given.Member].Shutdown(); err != nil {
		return err
	}
	delete(m.consumers, given.Member)
	if replier, found := m.repliers[given.Member]; found {
		_ = replier.Shutdown()
		delete(m.repliers, given.Member)
	}
	show(event{"event": "left", "id": given.ID})
	return nil
}

func (m *members) close() {
	for _, member := range m.consumers {
		_ = member.Shutdown()
	}
	for _, replier := range m.repliers {
		_ = replier.Shutdown()
	}
}

// toldStrategy is the client's default strategy, which also prints what it decided.
func toldStrategy(member, topic string) consumer.AllocateStrategy {
	return func(group, client string, queues []*primitive.MessageQueue, clients []string) []*primitive.MessageQueue {
		given := consumer.AllocateByAveragely(group, client, queues, clients)
		if len(queues) > 0 && strings.HasSuffix(queues[0].Topic, topic) && !strings.HasPrefix(queues[0].Topic, "%RETRY%") { // whatever its namespace
			numbers := []int{}
			for _, queue := range given {
				numbers = append(numbers, queue.QueueId)
			}
			show(event{"event": "assigned", "member": member, "members": len(clients), "queues": numbers})
		}
		return given
	}
}

func received(member string, message *primitive.MessageExt) event {
	return event{
		"event":                     "received",
		"member":                    member,
		"at":                        time.Now().UnixMilli(),
		"topic":                     message.Topic,
		"body":                      message.Body,
		"tags":                      optional(message.GetTags()),
		"keys":                      optional(message.GetKeys()),
		"properties":                message.GetProperties(),
		"flag":                      message.Flag,
		"sysFlag":                   message.SysFlag,
		"brokerName":                message.Queue.BrokerName,
		"queueId":                   message.Queue.QueueId,
		"queueOffset":               message.QueueOffset,
		"msgId":                     message.MsgId,
		"offsetMsgId":               message.OffsetMsgId,
		"commitLogOffset":           message.CommitLogOffset,
		"storeSize":                 message.StoreSize,
		"bodyCrc":                   message.BodyCRC,
		"bornTimestamp":             message.BornTimestamp,
		"bornHost":                  message.BornHost,
		"storeTimestamp":            message.StoreTimestamp,
		"storeHost":                 message.StoreHost,
		"reconsumeTimes":            message.ReconsumeTimes,
		"preparedTransactionOffset": message.PreparedTransactionOffset,
	}
}

func optional(text string) interface{} {
	if text == "" {
		return nil
	}
	return text
}
