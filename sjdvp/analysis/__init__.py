"""Watches a decoder at work, from outside: how distributions move while drafts wait, what prediction gains, what relaxing costs."""
