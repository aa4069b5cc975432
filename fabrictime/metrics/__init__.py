"""Exports the metrics of `schemas/metrics`: endpoint, OTLP push, sizes, rules."""
