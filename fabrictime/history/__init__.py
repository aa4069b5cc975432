"""The embedded history: chdb behind a ClickHouse-protocol endpoint on loopback."""
