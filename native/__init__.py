"""The hot path in C under Cython. `core`: probe engine, batch decoder, fits, reduction, mesh solve.

`sim`: the simulated fleet's kernel. It knows no Kafka, configuration or logging; imports nothing of ours.
"""
