"""The tab Actions."""
