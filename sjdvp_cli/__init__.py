"""The command line of sjdvp, one file per command. Only this package imports typer and rich."""
