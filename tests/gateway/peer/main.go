// franz-go as a tenant: what it writes, reads and sees, as JSON. One tenant a run.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

type asked struct {
	Bootstrap []string `json:"bootstrap"`
	Key       string   `json:"key"`
	Secret    string   `json:"secret"`
	Name      string   `json:"name"` // what its records begin with
	Topic     string   `json:"topic"`
	Group     string   `json:"group"`
	Writer    string   `json:"writer"`  // transactional id
	Foreign   string   `json:"foreign"` // a topic that is another tenant's alone
}

type seen struct {
	Values    []string `json:"values"`
	Committed int64    `json:"committed"`
	Topics    []string `json:"topics"`
	Groups    []string `json:"groups"`
	Cluster   string   `json:"cluster"`
	Brokers   []string `json:"brokers"`
	Foreign   string   `json:"foreign"` // the error of asking for it
	Retention string   `json:"retention"`
}

const records = 10

func main() {
	var a asked
	check(json.NewDecoder(os.Stdin).Decode(&a))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	found, err := run(ctx, a)
	check(err)
	check(json.NewEncoder(os.Stdout).Encode(found))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func client(a asked, more ...kgo.Opt) (*kgo.Client, error) {
	login := plain.Auth{User: a.Key, Pass: a.Secret}.AsMechanism()
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(a.Bootstrap...), kgo.SASL(login)}, more...)...)
}

func run(ctx context.Context, a asked) (seen, error) {
	var s seen
	producer, err := client(a, kgo.TransactionalID(a.Writer))
	if err != nil {
		return s, err
	}
	defer producer.Close()
	admin := kadm.NewClient(producer)
	retention := "3600000"
	configs := map[string]*string{"retention.ms": &retention}
	if _, err := admin.CreateTopic(ctx, 2, 3, configs, a.Topic); err != nil {
		return s, fmt.Errorf("create: %w", err)
	}
	for _, commit := range []bool{true, false} {
		if err := transaction(ctx, producer, a, commit); err != nil {
			return s, err
		}
	}
	if s.Values, err = consume(ctx, a); err != nil {
		return s, err
	}
	return s, look(ctx, admin, a, &s)
}

// Ten records in one transaction: those of the second one are never to be read.
func transaction(ctx context.Context, producer *kgo.Client, a asked, commit bool) error {
	if err := producer.BeginTransaction(); err != nil {
		return err
	}
	for n := 0; n < records; n++ {
		value := fmt.Sprintf("%s-%d", a.Name, n)
		if !commit {
			value = "never " + value
		}
		record := &kgo.Record{Topic: a.Topic, Value: []byte(value)}
		if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
			return fmt.Errorf("produce: %w", err)
		}
	}
	return producer.EndTransaction(ctx, kgo.TransactionEndTry(commit))
}

func consume(ctx context.Context, a asked) ([]string, error) {
	consumer, err := client(a, kgo.ConsumerGroup(a.Group), kgo.ConsumeTopics(a.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit())
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	var values []string
	for len(values) < records {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("consume: %w", err)
		}
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	sort.Strings(values)
	return values, consumer.CommitUncommittedOffsets(ctx)
}

func look(ctx context.Context, admin *kadm.Client, a asked, s *seen) error {
	topics, err := admin.ListTopics(ctx)
	if err != nil {
		return err
	}
	s.Topics = topics.Names()
	groups, err := admin.ListGroups(ctx)
	if err != nil {
		return err
	}
	s.Groups = groups.Groups()
	offsets, err := admin.FetchOffsets(ctx, a.Group)
	if err != nil {
		return err
	}
	offsets.Each(func(o kadm.OffsetResponse) { s.Committed += o.At })
	metadata, err := admin.BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	s.Cluster = metadata.Cluster
	for _, b := range metadata.Brokers {
		s.Brokers = append(s.Brokers, fmt.Sprintf("%s:%d", b.Host, b.Port))
	}
	foreign, err := admin.ListTopics(ctx, a.Foreign)
	if err != nil {
		return err
	}
	if failure, ok := foreign[a.Foreign].Err.(*kerr.Error); ok {
		s.Foreign = failure.Message
	}
	configs, err := admin.DescribeTopicConfigs(ctx, a.Topic)
	if err != nil {
		return err
	}
	one, err := configs.On(a.Topic, nil)
	if err != nil {
		return err
	}
	for _, c := range one.Configs {
		if c.Key == "retention.ms" && c.Value != nil {
			s.Retention = *c.Value
		}
	}
	return nil
}
