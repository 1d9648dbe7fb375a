"""What is counted for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """One registry per application, so that two in one process do not count together."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "stint_requests",
            "Answers by method, route and status",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "stint_request_seconds",
            "Time to an answer",
            ["route"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.in_flight = Gauge("stint_requests_in_flight", "Requests being answered", registry=self.registry)
        self.decisions = Counter(
            "stint_entries", "Entries that were appended, by kind", ["kind"], registry=self.registry
        )
        self.batch = Histogram(
            "stint_batch_operations",
            "Decisions that shared a transaction",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self.registry,
        )
        self.waiting = Gauge("stint_decisions_waiting", "Decisions that wait for a writer", registry=self.registry)
        self.sweeps = Counter("stint_sweeps", "Looks for holds that ran out", registry=self.registry)
        self.jobs = Gauge("stint_jobs", "Jobs by status, when this was asked", ["status"], registry=self.registry)
        self.audits = Gauge(
            "stint_audits",
            "Empirical audits by status and, where concluded, verdict, when this was asked",
            ["status", "verdict"],
            registry=self.registry,
        )
        self.findings = Counter(
            "stint_findings",
            "Findings in entries that were appended, by code and severity",
            ["code", "severity"],
            registry=self.registry,
        )
        self.webhooks = Gauge(
            "stint_webhooks", "Webhooks by status, when this was asked", ["status"], registry=self.registry
        )
        self.deliveries = Counter(
            "stint_webhook_deliveries", "Tries to deliver a webhook, by outcome", ["outcome"], registry=self.registry
        )
