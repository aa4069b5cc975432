"""Fabric time on a host: the clock page, its writer, and the discipline of a clock."""
