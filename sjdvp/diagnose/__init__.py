"""Watches a decoder at work, from outside: how laws move while drafts wait, what prediction gains, what relaxing costs."""
