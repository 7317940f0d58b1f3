// A client process under remote control, as the Java one: commands come as JSON lines, what happened leaves as JSON lines.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// A command is one line of standard input.
type command struct {
	Command    string    `json:"command"`
	ID         int       `json:"id"`
	NameServer string    `json:"nameServer"`
	Broker     string    `json:"broker"`
	Group      string    `json:"group"`
	Topic      string    `json:"topic"`
	Queues     int       `json:"queues"`
	Way        string    `json:"way"`
	Messages   []outward `json:"messages"`
	Member     string    `json:"member"`
	Expression string    `json:"expression"`
	Kind       string    `json:"kind"`
	Reads      string    `json:"reads"`
	Namespace  string    `json:"namespace"`
	Trace      bool      `json:"trace"`
	Orderly    bool      `json:"orderly"`
	Broadcast  bool      `json:"broadcast"`
	Fails      bool      `json:"fails"`
	Replies    bool      `json:"replies"`
	Pause      int       `json:"pause"`
	Timeout    int       `json:"timeout"`
	AccessKey  string    `json:"accessKey"`
	SecretKey  string    `json:"secretKey"`

	MaxReconsumeTimes *int32 `json:"maxReconsumeTimes"`
}

// An outward message is what the driver wants sent; []byte travels as base64 in JSON.
type outward struct {
	Body       []byte            `json:"body"`
	Tags       *string           `json:"tags"`
	Keys       *string           `json:"keys"`
	Properties map[string]string `json:"properties"`
	Flag       int32             `json:"flag"`
	Wait       bool              `json:"wait"`
	DelayLevel int               `json:"delayLevel"`
}

// account is whose requests a client signs; an empty one signs nothing.
func (c command) account() primitive.Credentials {
	return primitive.Credentials{AccessKey: c.AccessKey, SecretKey: c.SecretKey}
}

type event map[string]interface{}

var printing sync.Mutex

// show prints one event as one whole line.
func show(what event) {
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(line))
}

func main() {
	rlog.SetLogLevel("warn")
	show(event{"event": "ready"})
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	commands := json.NewDecoder(lines)
	senders, members, transactions := newSenders(), newMembers(), newTransactions()
	for {
		var given command
		if err := commands.Decode(&given); err != nil {
			break // end of input
		}
		if err := obey(given, senders, members, transactions); err != nil {
			show(event{"event": "failed", "id": given.ID, "error": err.Error()})
		}
	}
	members.close()
	senders.close()
	transactions.close()
}

func obey(given command, senders *senders, members *members, transactions *transactions) error {
	switch given.Command {
	case "send":
		return senders.send(given)
	case "transact":
		return transactions.transact(given)
	case "create":
		return senders.create(given)
	case "join":
		return members.join(given)
	case "leave":
		return members.leave(given)
	}
	return fmt.Errorf("no such command: %s", given.Command)
}
