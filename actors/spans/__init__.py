"""Spans of messages in the broker, for an OpenTelemetry collector (extra `otel`); off by default.

A message is sampled if its producer's `traceparent` says so. The loop notes sends and pulls
(span_queue.py). A thread makes spans and sends them over OTLP (span_export.py). Where spans are
off, there is no hook and no cost. No messages are sent between actors.
"""
