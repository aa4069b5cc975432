"""Rate limits of flows: pacing of incasts, tenants' shares, and the leases that carry the limits."""
