"""Fleet audits: collecting results, reports, comparison of runs."""
