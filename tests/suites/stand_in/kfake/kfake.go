// Package kfake stands in for franz-go's fake broker, so that its tests start brokers of Dafka.
//
// DAFKA_CLUSTERS is the URL of the program that starts them: tests/suites/franz_go.py.
package kfake

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type topics struct {
	partitions int32
	names      []string
}

type options struct {
	brokers int
	configs url.Values
	topics  []topics
}

// Opt changes how a cluster is started.
type Opt func(*options)

// NumBrokers is the number of brokers, 3 by default.
func NumBrokers(n int) Opt { return func(o *options) { o.brokers = n } }

// SeedTopics are created before the cluster is returned.
func SeedTopics(partitions int32, names ...string) Opt {
	return func(o *options) { o.topics = append(o.topics, topics{partitions, names}) }
}

// BrokerConfigs are settings by Kafka's names.
func BrokerConfigs(configs map[string]string) Opt {
	return func(o *options) {
		for name, value := range configs {
			o.configs.Set(name, value)
		}
	}
}

// Cluster is a cluster of brokers, each in a process of its own.
type Cluster struct {
	addresses []string
	location  string
}

// NewCluster starts a cluster.
func NewCluster(opts ...Opt) (*Cluster, error) {
	o := options{brokers: 3, configs: url.Values{}}
	for _, opt := range opts {
		opt(&o)
	}
	o.configs.Set("brokers", strconv.Itoa(o.brokers))
	answer, err := http.PostForm(os.Getenv("DAFKA_CLUSTERS"), o.configs)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	c := &Cluster{strings.Split(string(body), ","), answer.Header.Get("Location")}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.addresses...))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	for _, each := range o.topics {
		created, err := kadm.NewClient(client).CreateTopics(context.Background(), each.partitions, -1, nil, each.names...)
		if err == nil {
			err = created.Error()
		}
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// ListenAddrs returns the addresses of the brokers.
func (c *Cluster) ListenAddrs() []string { return c.addresses }

// ControlKey ends the program: a real broker does not let a test change its answers.
func (c *Cluster) ControlKey(int16, func(kmsg.Request) (kmsg.Response, error, bool)) {
	panic("a broker of Dafka gives its own answers")
}

// Close stops the brokers.
func (c *Cluster) Close() {
	request, err := http.NewRequest(http.MethodDelete, os.Getenv("DAFKA_CLUSTERS")+c.location, nil)
	if err == nil {
		if answer, err := http.DefaultClient.Do(request); err == nil {
			answer.Body.Close()
		}
	}
}
