"""Writes records to ClickHouse."""
