"""Evaluation of audits: hosts against each other, a baseline and their SKU; the fabric against its plan."""
