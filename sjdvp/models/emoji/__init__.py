"""The embedded model: its weights, its card, and the recipe that trained it."""
