from streams.delays.queueing import SUB_SLOTS, slot_ns_of

FLOW_LAG_NS = 50_000_000
FLOWS_EVERY_NS = 500_000_000
QUEUEING_EVERY_NS = 30_000_000
