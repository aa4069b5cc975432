"""The command `up`: starts the processes of one machine's pipeline and shows them in a live table."""
