//go:build tls

// The client of go.tls.mod, later than v2.1.2, with TLS: it shows no certificate, and believes whoever answers.
package main

import (
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var (
	administering = []admin.AdminOption{admin.WithTls(true)}
	consuming     = []consumer.Option{consumer.WithTls(true)}
	producing     = []producer.Option{producer.WithTls(true)}
)

const unknownState = primitive.UnkonwnState
