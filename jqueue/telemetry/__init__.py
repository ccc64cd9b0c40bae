"""Metrics of queues and workers for Prometheus, and traces for OpenTelemetry. Each needs its extra."""
