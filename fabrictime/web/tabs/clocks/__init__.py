"""The tab Clocks."""
