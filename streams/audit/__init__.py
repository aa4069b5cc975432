"""Evaluates audits: compares hosts with others, a baseline and their SKU, and the fabric with its plan."""
