// Sends transactional messages; each says in its properties what its producer knows of it, and when.
package main

import (
	"context"
	"strings"
	"sync"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

type transactions struct {
	producers map[string]rocketmq.TransactionProducer
}

func newTransactions() *transactions {
	return &transactions{producers: map[string]rocketmq.TransactionProducer{}}
}

func (t *transactions) transact(given command) error {
	sender, known := t.producers[given.Group]
	if !known {
		var err error
		options := append([]producer.Option{
			producer.WithNsResolver(primitive.NewPassthroughResolver([]string{given.NameServer})),
			producer.WithGroupName(given.Group),
			producer.WithInstanceName(given.Group),
			producer.WithCredentials(given.account()),
		}, producing...)
		sender, err = rocketmq.NewTransactionProducer(
			&outcomes{reads: given.Reads, checks: map[string]int{}}, options...)
		if err != nil {
			return err
		}
		if err := sender.Start(); err != nil {
			return err
		}
		t.producers[given.Group] = sender
	}
	results := []event{}
	for _, message := range messagesOf(given) {
		sent, err := sender.SendMessageInTransaction(context.Background(), message)
		if err != nil {
			return err
		}
		results = append(results, resultOf(sent.SendResult))
	}
	show(event{"event": "transacted", "id": given.ID, "results": results})
	return nil
}

func (t *transactions) close() {
	for _, sender := range t.producers {
		_ = sender.Shutdown()
	}
}

type outcomes struct {
	reads  string
	mutex  sync.Mutex
	checks map[string]int
}

func (o *outcomes) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return stateOf(message.GetProperty("local"))
}

func (o *outcomes) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	serial := message.GetProperty("serial")
	o.mutex.Lock()
	number := o.checks[serial]
	o.checks[serial]++
	o.mutex.Unlock()
	known := strings.Split(message.GetProperty(o.reads), ",")
	if number >= len(known) {
		number = len(known) - 1
	}
	show(event{"event": "checked", "member": o.reads, "serial": serial, "outcome": known[number],
		"times": message.GetProperty("TRANSACTION_CHECK_TIMES"), "topic": message.Topic,
		"transactionId": message.TransactionId})
	return stateOf(known[number])
}

func stateOf(outcome string) primitive.LocalTransactionState {
	switch outcome {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return unknownState
}
