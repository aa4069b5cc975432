"""Rates of flows: pacing of incasts, tenants' shares, and the leases that carry them."""
