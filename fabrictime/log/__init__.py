"""The embedded log: one process that speaks the Kafka protocol on loopback and keeps segments on disk."""
