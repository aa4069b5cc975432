"""Audits of a fleet: requests runs, collects results, evaluates them and writes reports."""
