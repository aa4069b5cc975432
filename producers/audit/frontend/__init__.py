"""Checks of the front end: addresses, bonds, sockets, services, reach."""
