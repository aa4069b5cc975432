"""The dashboards, each in a module."""
