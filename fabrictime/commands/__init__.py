"""The command line: a folder for each subject. `command.py` parses arguments, other modules do the work."""
