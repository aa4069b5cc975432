"""The public contract of fabrictime: records (.avsc), their codec, the topics, the history tables and ids.

Everything that crosses a process boundary is described here and nowhere else. Imports nothing of ours.
"""
