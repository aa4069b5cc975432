"""The commands of `fabrictime audit`."""
