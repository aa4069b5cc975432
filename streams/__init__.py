"""The Faust app: pure logic by stage in `map/` and `solve/`, lookups, history; the Faust side in
`agents/`."""
