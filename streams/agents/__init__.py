"""The Faust side of every stage: consume, call the logic, publish, acknowledge. Thin."""
