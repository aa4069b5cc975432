"""The metrics of all processes: their declarations, and a registry of functions that read the values."""
