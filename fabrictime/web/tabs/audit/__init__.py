"""The tab Audit: results of the audits by host and by check."""
