"""Simulates the fleet: queues, rate-controlled flows and probes, as a fluid; see fluid.c."""
