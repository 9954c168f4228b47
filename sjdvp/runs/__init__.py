"""What lies on disk: prompt files, run folders, logs, images, locks. Imports no torch, typer or rich."""
