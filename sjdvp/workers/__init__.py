"""Several processes that draw for one run: no process group, no ports, one pipe to the parent each. Imports no torch."""
