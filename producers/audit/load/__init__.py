"""Active checks, and the programs that load a host, its GPUs and the links between hosts."""
