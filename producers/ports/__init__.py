"""Watches a NIC's port and publishes evidence about its link."""
