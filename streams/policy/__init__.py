"""Policy: turns link health, contention and flow reports into decisions about flows."""
