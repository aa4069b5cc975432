"""Evaluates the health of links, NICs and hosts, and plans when each link is probed."""
