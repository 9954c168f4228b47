"""sjdvp: batch image generation with speculative Jacobi decoding and verification prediction.

This package is the library; it never imports its command line (`sjdvp_cli`), typer or rich.
"""

__version__ = "0.1.0"
