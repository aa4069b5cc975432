"""Effectors: the modules that carry out decisions, one for each kind of flow. The interface is `base.py`."""
