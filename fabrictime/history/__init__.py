"""The embedded history: chdb behind an endpoint on loopback that speaks ClickHouse's HTTP protocol."""
