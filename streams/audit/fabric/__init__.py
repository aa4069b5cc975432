"""Checks the fabric: cables, routes, rails, links, delays and clocks."""
