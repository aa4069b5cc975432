"""The command line. A command is usually one module."""
