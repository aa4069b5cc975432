"""The hot path in C under Cython. `core`: probe engine, batch decoder, fits, reduction, mesh solve.

`sim`: the simulated fleet's kernel. Knows no Kafka, no configuration files and no logging; imports nothing of
ours.
"""
