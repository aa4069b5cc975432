"""The tab Now: the state of the fleet in one sentence, incidents and slow jobs."""
