"""The command line, a folder per subject: `command.py` parses arguments, other modules run the command."""
