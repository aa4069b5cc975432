"""The tab Delays: heat map of one-way delays, one pair of NICs, and the clocks."""
