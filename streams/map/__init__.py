"""Map stages: partitioned by NIC, pure functions of decoded records."""
