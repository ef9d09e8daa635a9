// Calls the scaler through KEDA's own external scaler clients, without a Kubernetes cluster.
//
// Reads one request as JSON on standard input, calls the scaler at the given address through
// KEDA's client, and writes what KEDA receives as JSON on standard output.
// tests/scale/test_peer_keda.py checks it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	v2 "k8s.io/api/autoscaling/v2"

	"github.com/kedacore/keda/v2/pkg/scalers"
	"github.com/kedacore/keda/v2/pkg/scalers/scalersconfig"
)

type request struct {
	Metadata     map[string]string `json:"metadata"`
	AuthParams   map[string]string `json:"auth_params"`
	Name         string            `json:"name"`
	Namespace    string            `json:"namespace"`
	TriggerIndex int               `json:"trigger_index"`
	PushSeconds  float64           `json:"push_seconds"`
	Push         bool              `json:"push"`
}

type output struct {
	Specs       []spec   `json:"specs"`
	Values      []value  `json:"values"`
	Active      bool     `json:"active"`
	Error       string   `json:"error"`
	Pushed      []bool   `json:"pushed"`
	PushedSpecs [][]spec `json:"pushed_specs"`
}

type spec struct {
	Name   string  `json:"name"`
	Target float64 `json:"target"`
	Kind   string  `json:"kind"`
}

type value struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

func main() {
	var input request
	if err := json.NewDecoder(os.Stdin).Decode(&input); err != nil {
		fail(err)
	}
	config := &scalersconfig.ScalerConfig{
		ScalableObjectName:      input.Name,
		ScalableObjectNamespace: input.Namespace,
		TriggerMetadata:         input.Metadata,
		AuthParams:              input.AuthParams,
		TriggerIndex:            input.TriggerIndex,
		MetricType:              v2.AverageValueMetricType,
		GlobalHTTPTimeout:       5 * time.Second,
	}
	result, err := drive(config, input)
	if err != nil {
		result.Error = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fail(err)
	}
}

func drive(config *scalersconfig.ScalerConfig, input request) (output, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if input.Push {
		return push(ctx, config, time.Duration(input.PushSeconds*float64(time.Second)))
	}
	scaler, err := scalers.NewExternalScaler(config)
	if err != nil {
		return output{}, err
	}
	defer scaler.Close(ctx)
	result := output{Specs: toSpecs(scaler.GetMetricSpecForScaling(ctx))}
	if len(result.Specs) == 0 {
		return result, fmt.Errorf("no metric spec")
	}
	values, active, err := scaler.GetMetricsAndActivity(ctx, result.Specs[0].Name)
	if err != nil {
		return result, err
	}
	for _, each := range values {
		result.Values = append(result.Values, value{each.MetricName, each.Value.AsApproximateFloat64()})
	}
	result.Active = active
	return result, nil
}

func push(ctx context.Context, config *scalersconfig.ScalerConfig, listen time.Duration) (output, error) {
	scaler, err := scalers.NewExternalPushScaler(config)
	if err != nil {
		return output{}, err
	}
	defer scaler.Close(ctx)
	ctx, cancel := context.WithTimeout(ctx, listen)
	defer cancel()
	active := make(chan bool)
	go scaler.Run(ctx, active)
	var specs <-chan []v2.MetricSpec
	if streaming, ok := scaler.(interface{ MetricSpecChan() <-chan []v2.MetricSpec }); ok {
		specs = streaming.MetricSpecChan()
	}
	result := output{}
	for active != nil {
		select {
		case state, open := <-active:
			if !open {
				active = nil
				break
			}
			result.Pushed = append(result.Pushed, state)
		case update, open := <-specs:
			if !open {
				specs = nil
				break
			}
			result.PushedSpecs = append(result.PushedSpecs, toSpecs(update))
		}
	}
	return result, nil
}

func toSpecs(specs []v2.MetricSpec) []spec {
	result := make([]spec, 0, len(specs))
	for _, each := range specs {
		target := each.External.Target
		result = append(result, spec{each.External.Metric.Name, target.AverageValue.AsApproximateFloat64(), string(target.Type)})
	}
	return result
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
