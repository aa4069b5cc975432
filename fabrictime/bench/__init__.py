"""`fabrictime bench NAME`: figures with targets, peers measured in the same run."""
