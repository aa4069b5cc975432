"""Handlers of the requests that the broker answers, one file per subject."""
