// Sends messages in the four ways of the official producer and tells what each send returned.
package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const asyncDeadline = 30 * time.Second

type senders struct {
	producers map[string]rocketmq.Producer
}

func newSenders() *senders {
	return &senders{producers: map[string]rocketmq.Producer{}}
}

func (s *senders) send(given command) error {
	sender, err := s.producer(given)
	if err != nil {
		return err
	}
	messages := messagesOf(given)
	began := time.Now().UnixMilli()
	results, err := sendAll(sender, given, messages)
	if err != nil {
		return err
	}
	show(event{"event": "sent", "id": given.ID, "began": began, "ended": time.Now().UnixMilli(),
		"results": results, "wire": []event{}})
	return nil
}

func (s *senders) create(given command) error {
	options := append([]admin.AdminOption{
		admin.WithResolver(primitive.NewPassthroughResolver([]string{given.NameServer})),
		admin.WithCredentials(given.account()),
	}, administering...)
	creator, err := admin.NewAdmin(options...)
	if err != nil {
		return err
	}
	err = creator.CreateTopic(context.Background(), admin.WithTopicCreate(given.Topic),
		admin.WithBrokerAddrCreate(given.Broker), admin.WithReadQueueNums(given.Queues),
		admin.WithWriteQueueNums(given.Queues))
	if err != nil {
		return err
	}
	show(event{"event": "created", "id": given.ID})
	return nil
}

func (s *senders) close() {
	for _, sender := range s.producers {
		_ = sender.Shutdown()
	}
}

func (s *senders) producer(given command) (rocketmq.Producer, error) {
	if known, found := s.producers[given.Group]; found {
		return known, nil
	}
	options := append([]producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{given.NameServer})),
		producer.WithGroupName(given.Group),
		producer.WithInstanceName(given.Group),
		producer.WithCredentials(given.account()),
	}, producing...)
	if given.Namespace != "" {
		options = append(options, producer.WithNamespace(given.Namespace))
	}
	if given.Trace {
		options = append(options, producer.WithTrace(traced(given)))
	}
	sender, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	if err := sender.Start(); err != nil {
		return nil, err
	}
	s.producers[given.Group] = sender
	return sender, nil
}

// traced says where traces go: to the topic that every broker has for them.
func traced(given command) *primitive.TraceConfig {
	return &primitive.TraceConfig{
		GroupName:   "traces-of-" + given.Group,
		Access:      primitive.Local,
		Credentials: given.account(),
		Resolver:    primitive.NewPassthroughResolver([]string{given.NameServer}),
	}
}

func sendAll(sender rocketmq.Producer, given command, messages []*primitive.Message) ([]event, error) {
	background := context.Background()
	switch given.Way {
	case "batch":
		sent, err := sender.SendSync(background, messages...)
		if err != nil {
			return nil, err
		}
		return []event{resultOf(sent)}, nil
	case "sync":
		results := []event{}
		for _, message := range messages {
			sent, err := sender.SendSync(background, message)
			if err != nil {
				return nil, err
			}
			results = append(results, resultOf(sent))
		}
		return results, nil
	case "request":
		return ask(sender, given, messages)
	case "request-async":
		return askAsync(sender, messages)
	case "async":
		return sendAsync(sender, messages)
	case "oneway":
		for _, message := range messages {
			if err := sender.SendOneWay(background, message); err != nil {
				return nil, err
			}
		}
		return []event{}, nil
	}
	return nil, fmt.Errorf("no such way to send: %s", given.Way)
}

func sendAsync(sender rocketmq.Producer, messages []*primitive.Message) ([]event, error) {
	results := make([]event, len(messages))
	var answers sync.WaitGroup
	answers.Add(len(messages))
	for i, message := range messages {
		index := i
		err := sender.SendAsync(context.Background(),
			func(_ context.Context, sent *primitive.SendResult, err error) {
				if err != nil {
					results[index] = event{"status": err.Error()}
				} else {
					results[index] = resultOf(sent)
				}
				answers.Done()
			}, message)
		if err != nil {
			return nil, err
		}
	}
	all := make(chan struct{})
	go func() {
		answers.Wait()
		close(all)
	}()
	select {
	case <-all:
		return results, nil
	case <-time.After(asyncDeadline):
		return nil, fmt.Errorf("some callbacks never came")
	}
}

func resultOf(sent *primitive.SendResult) event {
	status := fmt.Sprint(sent.Status)
	if sent.Status == primitive.SendOK {
		status = "SEND_OK"
	}
	var ids []string
	if sent.MsgID != "" {
		ids = strings.Split(sent.MsgID, ",")
	}
	return event{
		"status":       status,
		"msgIds":       ids,
		"offsetMsgIds": strings.Split(sent.OffsetMsgID, ","),
		"topic":        sent.MessageQueue.Topic,
		"brokerName":   sent.MessageQueue.BrokerName,
		"queueId":      sent.MessageQueue.QueueId,
		"queueOffset":  sent.QueueOffset,
		"regionId":     sent.RegionID,
	}
}

func messagesOf(given command) []*primitive.Message {
	messages := []*primitive.Message{}
	for _, wanted := range given.Messages {
		message := primitive.NewMessage(given.Topic, wanted.Body)
		for name, value := range wanted.Properties {
			message.WithProperty(name, value)
		}
		if wanted.Tags != nil {
			message.WithTag(*wanted.Tags)
		}
		if wanted.Keys != nil {
			message.WithKeys(strings.Split(*wanted.Keys, primitive.PropertyKeySeparator))
		}
		if !wanted.Wait {
			message.WithProperty(primitive.PropertyWaitStoreMsgOk, "false")
		}
		if wanted.DelayLevel != 0 {
			message.WithDelayTimeLevel(wanted.DelayLevel)
		}
		message.Flag = wanted.Flag
		messages = append(messages, message)
	}
	return messages
}
