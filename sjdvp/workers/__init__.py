"""Several processes for one run, each with one pipe to the parent. Imports no torch."""
