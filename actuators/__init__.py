"""The actuator of a host: it moves and paces flows, maintains the clock page and disciplines a clock."""
