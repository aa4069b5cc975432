"""Writes the measured topology of the fabric in the file formats of job schedulers."""
