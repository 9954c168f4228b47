"""Run the command line as `python -m sjdvp_cli`."""

from sjdvp_cli.app import main

main()
