"""Judges the health of links, NICs and hosts, and plans which links are probed when."""
