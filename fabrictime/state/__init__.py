"""State that the command line and the web page share; imports neither."""
