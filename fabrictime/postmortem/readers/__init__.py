"""Readers of the files that jobs leave behind, one module per format. They take bytes or lines; no I/O."""
