"""Exports the metrics of `schemas/metrics`: HTTP endpoint, OTLP push, number of series, alert rules."""
