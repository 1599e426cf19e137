package main

import (
	"os"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// keys are those that all clients sign with; without them in the environment nothing is signed.
var keys = primitive.Credentials{
	AccessKey: os.Getenv("INTEROP_ACCESS_KEY"), SecretKey: os.Getenv("INTEROP_SECRET_KEY"), SecurityToken: os.Getenv("INTEROP_SECURITY_TOKEN"),
}

func signedProducer(options ...producer.Option) []producer.Option {
	if keys.IsEmpty() {
		return options
	}
	return append(options, producer.WithCredentials(keys))
}

func signedConsumer(options ...consumer.Option) []consumer.Option {
	if keys.IsEmpty() {
		return options
	}
	return append(options, consumer.WithCredentials(keys))
}

func signedAdmin(options ...admin.AdminOption) []admin.AdminOption {
	if keys.IsEmpty() {
		return options
	}
	return append(options, admin.WithCredentials(keys))
}
