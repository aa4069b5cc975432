"""Audits of a fleet: request, collection, report."""
