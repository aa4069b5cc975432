"""Decodes probe batches, fits clock models to NIC pairs, and reduces samples to path delays."""
