"""Setting up a host: its NICs by class, the files of its agent, and checks of what the agent needs."""
