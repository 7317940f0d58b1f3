//go:build !tls

// The client of go.mod, which knows no TLS.
package main

import (
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var (
	administering []admin.AdminOption
	consuming     []consumer.Option
	producing     []producer.Option
)

const unknownState = primitive.UnknowState
