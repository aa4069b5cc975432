"""The command `replay`: computes stages again from a log and compares the outputs."""
