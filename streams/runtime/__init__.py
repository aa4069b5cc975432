"""Faust app, stage base, global tables and workarounds for upstream defects."""
