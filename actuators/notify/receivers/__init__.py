"""The receivers of notifications, one module per protocol."""
