"""What lies on disk: prompt files, run folders, logs, pictures, locks. Imports no torch, typer or rich."""
