"""Commands that list, explain and export jobs."""
