"""The public contract of fabrictime: records (.avsc), their codec, the topics, the history tables and ids.

All data that crosses a process boundary is defined here alone. The package imports no other package of ours.
"""
