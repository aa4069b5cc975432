"""The command `replay`: recomputes stages from a log and compares their outputs."""
