"""Writes the pipeline's records to the tables of ClickHouse."""
