"""The states of links, NICs and hosts, from the evidence to the records."""
