"""Observes the hosts of the fleet and writes records to the log; one folder per observed subject."""
