"""Faust app, stage base classes, global tables and workarounds for upstream defects."""
