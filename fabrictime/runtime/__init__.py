"""The configuration, the supervisor and the services of one machine."""
