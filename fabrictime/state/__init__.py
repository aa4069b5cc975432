"""State of the fleet that the command line and the web page share; this package imports neither of them."""
