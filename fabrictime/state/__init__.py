"""State that the command line and the web page share; it imports neither of them."""
