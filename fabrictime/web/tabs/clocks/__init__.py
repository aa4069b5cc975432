"""The tab Clocks: error bounds and offsets of all clocks, and the probe mesh."""
