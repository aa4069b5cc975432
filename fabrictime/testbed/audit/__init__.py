"""Recorded hosts and planted faults of the audit, and simulated fabrics whose truth is known."""
