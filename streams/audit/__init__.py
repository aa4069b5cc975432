"""Evaluation of audits: compares hosts with each other, a baseline and their SKU, and the fabric with its
plan."""
