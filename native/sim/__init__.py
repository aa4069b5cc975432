"""Simulation kernels of a fleet: networks of queues by packets (`packet`) or as a fluid (`fluid`)."""

from native.sim.columns import Dcqcn, FlowColumns, LinkTruth, ProbeTruth
from native.sim.packet import PacketSim

__all__ = ["Dcqcn", "FlowColumns", "LinkTruth", "PacketSim", "ProbeTruth"]
