"""The command line of sjdvp: the only code here that knows typer, rich and exit codes. One file a command."""
