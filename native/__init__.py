"""Holds the hot path in C under Cython. `core`: probe engine, batch decoder, fits, reduction, mesh solve.

`sim` is the simulated fleet's kernel. Neither uses Kafka, configuration, logging or other modules of ours.
"""
