"""The tab Delays."""
