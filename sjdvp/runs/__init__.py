"""Prompt files and run folders. Imports no torch, typer or rich."""
