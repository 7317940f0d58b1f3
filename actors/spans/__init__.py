"""Spans of messages in the broker, for an OpenTelemetry collector (extra `otel`); off by default.

    span_queue.py     what the loop notes of sends and pulls: who is sampled, and a limit
    span_export.py    the actor that makes spans of it and sends them over OTLP

A message is sampled if its producer's `traceparent` says so. Where it is off there is no hook, and
sends and pulls pay nothing.
"""
