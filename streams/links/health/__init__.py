"""The states of links, NICs and hosts: from probe evidence to `LinkHealth` records."""
