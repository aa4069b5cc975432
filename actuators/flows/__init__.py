"""The actions on a host's flows: commands, leases, local repair, and their reports."""
