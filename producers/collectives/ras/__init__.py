"""Finds and queries the RAS services of NCCL and RCCL on the host, and converts their reports to records."""
