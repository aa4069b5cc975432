"""A host as a support bundle shows it."""
