"""Job arrays on a SLURM cluster: the scripts, the queue's commands, and how far an array is. Imports no torch."""
