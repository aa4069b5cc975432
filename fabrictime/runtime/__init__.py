"""Configuration, supervisor and services of one machine."""
