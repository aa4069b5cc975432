"""The tab Actions: decisions and their outcomes, suppressed actions, limits, and one flow."""
