"""The metrics of all processes: their table, and the registry of the functions that read them."""
