"""Installation of a host's agent: NICs by class, the agent's files, and checks of its requirements."""
