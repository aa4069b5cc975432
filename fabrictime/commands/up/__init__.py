"""The command `up`: the processes of one machine's pipeline and their live table."""
