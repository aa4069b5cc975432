"""What acts on a host: its clock page, fabric time for every program, and the steering of a clock."""
