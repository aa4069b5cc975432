"""The tab Alerts."""
