"""The tab Now."""
