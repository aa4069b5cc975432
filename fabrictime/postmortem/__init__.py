"""Explains a dead, hung or slow job from the files that it left: dumps, traces, logs, tables, accounting."""
