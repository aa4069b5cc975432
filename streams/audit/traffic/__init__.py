"""Evaluates traffic between hosts: rounds, collectives, slow hosts and links."""
