"""Localisers: functions from evidence to faults, one per kind of fault."""
