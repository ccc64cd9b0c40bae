"""Metrics and traces of queues and workers, for Prometheus and OpenTelemetry. Each needs its extra."""
