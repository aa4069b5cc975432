"""Commands that set up and check a host's installation: `init` and `doctor`."""
