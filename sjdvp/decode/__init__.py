"""The algorithm: drafting, verification prediction, verifying. Knows no model and no file."""
