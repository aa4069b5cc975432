"""Sources of alerts: each turns one kind of record into alerts of the book."""
