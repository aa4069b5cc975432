"""A server of the Model Context Protocol that gives assistants the state of the fleet."""
