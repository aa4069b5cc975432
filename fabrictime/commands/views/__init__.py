"""Shows tables of clocks, links, alerts, actions, records and topology."""
