"""History: records to rows, and rows to ClickHouse."""
