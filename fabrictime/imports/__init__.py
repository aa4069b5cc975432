"""Readers of other tools' descriptions of a fabric, for `fabrictime topology import`."""
