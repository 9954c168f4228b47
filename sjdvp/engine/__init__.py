"""The engine: jobs take batch slots, all slots take decode steps together, sequences become images."""
