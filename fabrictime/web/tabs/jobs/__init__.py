"""The tab Jobs."""
