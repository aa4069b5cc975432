"""The tab Contention: contention windows over time, link by link."""
