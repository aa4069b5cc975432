"""Probes over RDMA's own datagrams: UD queue pairs, the same samples as the UDP prober's.

`service` is the agent; `edge` is the program that touches verbs, mostly under another interpreter: it and
what it imports (`asker`, `packets`, `paths`, `stamps`) use the standard library and pyverbs alone.
"""
