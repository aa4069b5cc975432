"""The tab Audit."""
