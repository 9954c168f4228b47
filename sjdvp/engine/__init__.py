"""The engine: jobs take batch slots, and all slots take decode steps together."""
