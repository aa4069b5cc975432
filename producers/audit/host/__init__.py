"""A host as checks read it: the interface, and the implementation that reads a real host."""
