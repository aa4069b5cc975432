"""The tab Contention."""
