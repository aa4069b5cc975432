"""The command line: a folder for each subject; `command.py` parses arguments, the other modules do the work."""
