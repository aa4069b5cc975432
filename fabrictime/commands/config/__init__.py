"""Commands that change the live configuration: `config`, `pause` and `resume`."""
