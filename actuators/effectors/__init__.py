"""Effectors: the modules that carry out decisions, one for each kind of flow. `base.py` has the interface."""
