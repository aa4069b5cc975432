"""The live web page: an HTTP server, its tabs, and the state that they show."""
