"""fabrictime, the application: command line, configuration, supervisor and the embedded services."""
