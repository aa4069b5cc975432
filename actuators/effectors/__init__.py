"""What carries decisions out, one module a kind of flow."""
