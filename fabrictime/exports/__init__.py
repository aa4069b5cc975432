"""The measured fabric in the formats of schedulers."""
