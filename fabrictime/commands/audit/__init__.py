"""The commands of `fabrictime audit`, which check hosts before a long run."""
