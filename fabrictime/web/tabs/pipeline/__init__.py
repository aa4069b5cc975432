"""The tab Pipeline: checks of the pipeline itself, and rejected messages."""
