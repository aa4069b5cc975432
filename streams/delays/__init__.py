"""Decodes probe batches, fits NIC pairs and reduces path delays."""
