"""Test data for the audit: recorded hosts, planted faults, and simulated fabrics with known faults."""
