"""The actuator of a host: it acts on flows, keeps the clock page and disciplines a clock."""
