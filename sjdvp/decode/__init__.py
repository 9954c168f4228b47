"""Speculative Jacobi decoding: draft, verify, predict. Knows no model and no file."""
