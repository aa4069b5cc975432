"""Turns records into alerts of the book, with one source for each kind of record."""
