"""Prometheus alert rules and a Grafana dashboard, from the metric catalogue.

Expressions name metrics by their table and key: one that the catalogue does not have, or a label that a
metric does not have, is an error here. `tools.reference` writes the files, and the test suite compares them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from penstock.health.detector import SICK
from penstock.health.slo import RULES
from penstock.model.metric_catalogue import (
    AUDIT,
    BALANCE,
    CONTROL,
    FLEET,
    GATEWAY,
    HEALTH,
    PROCESS,
    ROLLS,
    Kind,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ALERTS_HEAD: Final = """\
# Alert rules for Prometheus. Generated from the metric catalogue: `python -m tools.reference`.
# Every control plane exports what it judges, so rules take the highest of them.
"""
SICK_STATES: Final = "|".join(sorted(SICK))
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 24, 12, 8


def metric(table: Table, key: str, selector: str = "") -> str:
    """The metric as an expression names it; `selector` is of its labels."""
    entry = table.metrics[key]
    known = {label.name for label in entry.labels} | {"le"}
    for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector):
        if label not in known:
            raise ValueError(f"{entry.shown_name} has no label {label}")
    name = f"{entry.name}_bucket" if entry.kind is Kind.HISTOGRAM else entry.shown_name
    return f"{name}{{{selector}}}" if selector else name


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    expression: str
    lasts: str  # before it is reported
    severity: str  # `page` or `ticket`
    summary: str
    page: str = "health.md"  # of the documentation


def health_alerts() -> Iterator[Alert]:
    burn = HEALTH, "burn_ratio"
    for rule in RULES:
        windows = (rule.short_minutes, rule.long_minutes)
        rates = (metric(*burn, f'window="{each}m"') for each in windows)
        both = (f"max by (cluster) ({rate}) >= {rule.burn:g}" for rate in rates)
        yield Alert(
            f"PenstockErrorBudgetBurns{rule.short_minutes}m", " and ".join(both), "0m", rule.severity,
            "Cluster {{ $labels.cluster }} uses up its error budget at "
            f"{rule.burn:g} times the rate that its target allows.",
        )  # fmt: skip
    yield Alert(
        "PenstockErrorBudgetSpent",
        f"min by (cluster) ({metric(HEALTH, 'budget_ratio')}) <= 0", "5m", "ticket",
        "Cluster {{ $labels.cluster }} has used up the month's error budget.",
    )  # fmt: skip
    state = metric(HEALTH, "state", f'state=~"{SICK_STATES}"')
    yield Alert(
        "PenstockBrokerSick", f"max by (cluster, broker, state) ({state}) == 1", "2m", "page",
        "Broker {{ $labels.broker }} of {{ $labels.cluster }} is {{ $labels.state }}.",
    )  # fmt: skip
    yield Alert(
        "PenstockIncidentOpen", f"max by (cluster) ({metric(HEALTH, 'incidents')}) > 0", "15m", "ticket",
        "{{ $value }} incidents of {{ $labels.cluster }} are not resolved.",
    )  # fmt: skip
    yield Alert(
        "PenstockRecordLost", f"increase({metric(HEALTH, 'probes_lost')}[10m]) > 0", "0m", "page",
        "An acknowledged record of a probe on {{ $labels.cluster }} was not delivered.",
    )  # fmt: skip
    sent, due = metric(HEALTH, "probes_sent"), metric(HEALTH, "probes_due")
    yield Alert(
        "PenstockCheckerFallsBehind", f"rate({sent}[5m]) < 0.9 * rate({due}[5m])", "5m", "ticket",
        "A checker does not send the probes of {{ $labels.cluster }} that are due.",
    )  # fmt: skip
    yield Alert(
        "PenstockCheckerStalls", f"increase({metric(HEALTH, 'checker_stalled')}[15m]) > 3", "0m", "ticket",
        "A checker of {{ $labels.cluster }} stalls, and judges no broker meanwhile.",
    )  # fmt: skip


def platform_alerts() -> Iterator[Alert]:
    active = metric(CONTROL, "active")
    yield Alert(
        "PenstockNoActiveControlPlane", f"(max({active}) or vector(0)) < 1", "2m", "page",
        "No control plane is active.", "control.md",
    )  # fmt: skip
    yield Alert(
        "PenstockProcessNotReady", f"{metric(PROCESS, 'penstock_ready')} == 0", "5m", "ticket",
        "{{ $labels.instance }} is not ready.", "failures.md",
    )  # fmt: skip
    yield Alert(
        "PenstockGatewayStateOld", f"{metric(GATEWAY, 'state_age_seconds')} > 300", "1m", "ticket",
        "The gateway {{ $labels.instance }} does not follow changes of tenants.", "failures.md",
    )  # fmt: skip
    load = metric(BALANCE, "broker_load_ratio")
    yield Alert(
        "PenstockBrokerOverloaded", f"max by (cluster, broker) ({load}) > 0.9", "15m", "ticket",
        "Broker {{ $labels.broker }} of {{ $labels.cluster }} is overloaded.", "balance.md",
    )  # fmt: skip
    yield Alert(
        "PenstockBalancingBlocked", f"max by (cluster) ({metric(BALANCE, 'blocked')}) == 1", "1h", "ticket",
        "Cluster {{ $labels.cluster }} should be balanced, and something blocks it.", "balance.md",
    )  # fmt: skip
    yield Alert(
        "PenstockRollPaused", f"max by (cluster) ({metric(ROLLS, 'roll_paused')}) == 1", "5m", "ticket",
        "A roll of {{ $labels.cluster }} waits for an operator.", "rolls.md",
    )  # fmt: skip
    findings = metric(AUDIT, "findings_open")
    yield Alert(
        "PenstockDurabilityFinding", f"max by (cluster, rule) ({findings}) > 0", "0m", "page",
        "The durability audit of {{ $labels.cluster }} has findings of rule {{ $labels.rule }}.", "audit.md",
    )  # fmt: skip
    active, age = metric(AUDIT, "active"), metric(AUDIT, "collector_age_seconds")
    yield Alert(
        "PenstockAuditSilent", f"max by (cluster) ({active}) < 1 or max by (cluster) ({age}) > 60",
        "2m", "page", "Nothing audits the durability of {{ $labels.cluster }}.", "audit.md",
    )  # fmt: skip
    yield Alert(
        "PenstockNodeRestarts", f"increase({metric(FLEET, 'node_restarts')}[1h]) > 3", "0m", "ticket",
        "Node {{ $labels.node }} is restarted again and again.", "failures.md",
    )  # fmt: skip


def alert_rules() -> str:
    """The rule file."""
    rules = [
        {
            "alert": each.name,
            "expr": each.expression,
            "for": each.lasts,
            "labels": {"severity": each.severity},
            "annotations": {"summary": each.summary, "description": f"See docs/{each.page}."},
        }
        for each in (*health_alerts(), *platform_alerts())
    ]
    document = {"groups": [{"name": "penstock", "rules": rules}]}
    return ALERTS_HEAD + yaml.safe_dump(document, sort_keys=False, width=110)


def panels() -> Iterator[tuple[str, str, str, str]]:
    """Title, unit, expression and legend of each."""
    own = 'cluster=~"$cluster"'
    seconds = metric(HEALTH, "probe_seconds", f'{own},role="path"')
    yield (
        "Error budget left",
        "percentunit",
        f"min by (cluster) ({metric(HEALTH, 'budget_ratio', own)})",
        "{{cluster}}",
    )
    burn = metric(HEALTH, "burn_ratio", own)
    yield "Burn rate by window", "none", f"max by (cluster, window) ({burn})", "{{cluster}} {{window}}"
    sick = metric(HEALTH, "state", f'{own},state!="healthy"')
    yield (
        "Brokers that are not healthy",
        "none",
        f"max by (broker, state) ({sick}) == 1",
        "{{broker}} {{state}}",
    )
    quantile = f"histogram_quantile(0.99, sum by (broker, le) (rate({seconds}[5m])))"
    yield "Clients' probes, P99 by broker", "s", quantile, "broker {{broker}}"
    alone = metric(HEALTH, "probe_seconds", f'{own},role="alone"')
    median = f"histogram_quantile(0.5, sum by (broker, le) (rate({alone}[5m])))"
    yield "Writes to each broker alone, median", "s", median, "broker {{broker}}"
    failed = metric(HEALTH, "probe_failures", own)
    yield "Failed probes", "ops", f"sum by (role, error) (rate({failed}[5m]))", "{{role}} {{error}}"
    actions = metric(HEALTH, "actions", own)
    yield (
        "Steps of health",
        "none",
        f"sum by (cluster, action) (increase({actions}[1h]))",
        "{{cluster}} {{action}}",
    )
    yield "Open incidents", "none", f"max by (cluster) ({metric(HEALTH, 'incidents', own)})", "{{cluster}}"
    load = metric(BALANCE, "broker_load_ratio", own)
    yield "Broker load", "percentunit", f"max by (cluster, broker) ({load})", "{{cluster}} {{broker}}"
    received, sent = metric(GATEWAY, "received_bytes"), metric(GATEWAY, "sent_bytes")
    yield "Tenants: bytes received", "Bps", f"topk(10, sum by (tenant) (rate({received}[5m])))", "{{tenant}}"
    yield "Tenants: bytes sent", "Bps", f"topk(10, sum by (tenant) (rate({sent}[5m])))", "{{tenant}}"
    throttled = metric(GATEWAY, "throttled_seconds")
    yield "Tenants: throttled", "s", f"topk(10, sum by (tenant) (rate({throttled}[5m])))", "{{tenant}}"
    flight = metric(GATEWAY, "oldest_in_flight_seconds")
    yield "Oldest request in flight", "s", f"max by (broker) ({flight})", "broker {{broker}}"
    yield "Not ready", "none", f"{metric(PROCESS, 'penstock_ready')} == 0", "{{instance}}"


def dashboard() -> str:
    """The dashboard, for Grafana's import."""
    source = {"type": "prometheus", "uid": "${source}"}
    shown = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": title,
            "datasource": source,
            "gridPos": {
                "h": PANEL_HEIGHT, "w": PANEL_WIDTH,
                "x": number * PANEL_WIDTH % COLUMNS, "y": number * PANEL_WIDTH // COLUMNS * PANEL_HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "targets": [{"refId": "A", "expr": expression, "legendFormat": legend, "datasource": source}],
        }
        for number, (title, unit, expression, legend) in enumerate(panels())
    ]  # fmt: skip
    state = metric(HEALTH, "state")
    variables: list[dict[str, Any]] = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "cluster", "type": "query", "datasource": source,
            "query": f"label_values({state}, cluster)",
            "includeAll": True, "multi": True, "refresh": 2, "current": {"text": "All", "value": "$__all"},
        },
    ]  # fmt: skip
    document = {
        "title": "Penstock",
        "uid": "penstock",
        "description": "Generated from the metric catalogue: python -m tools.reference",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "panels": shown,
    }
    return json.dumps(document, indent=1) + "\n"
