"""Readers of the files that jobs leave behind, one module per format. Pure: they take bytes or lines."""
