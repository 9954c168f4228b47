"""Job arrays on a SLURM cluster: scripts, queue, progress. Imports no torch."""
