"""Commands about jobs: list, explain and export."""
