"""Actions on the nodes of a scheduler: fitness of hosts, drain and resume."""
