"""The kernel of the simulated fleet: networks of queues, packet by packet. Figures in, figures out."""

from native.sim.columns import Dcqcn, FlowColumns, LinkTruth, ProbeTruth
from native.sim.packet import PacketSim

__all__ = ["Dcqcn", "FlowColumns", "LinkTruth", "PacketSim", "ProbeTruth"]
