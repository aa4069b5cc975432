"""Commands about alerts: `alert list`, `ack`, `silence`, `comment`, `maintenance` and `end`."""
