"""The worker's runner: Faust decides who owns which partition, operators take whole batches of them."""
