"""Checks of the software: kernel, packages, systemd units, environment of jobs."""
