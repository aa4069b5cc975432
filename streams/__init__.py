"""Stream processing with Faust: one package per domain, each with its logic and its stage."""
