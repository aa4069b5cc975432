"""Objectives of policy, such as failover: each one proposes moves or rate limits."""
