"""The tab Pipeline."""
