"""Evaluation of audits: compares hosts with others, a baseline and their SKU, the fabric with its plan."""
