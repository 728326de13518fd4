"""Death measured: SIGKILL of each process of a pipeline at each stage, and what becomes of it."""
