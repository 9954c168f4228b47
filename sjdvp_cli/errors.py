"""Error messages: one sentence, and one line with a hint."""

import os
import re

import typer

# Wording of the library that checks the values of flags, and ours.
_WORDS = (
    (r"Input should be a valid integer.*", "it must be a whole number"),
    (r"Input should be greater than or equal to (\S+)", r"it must be \1 or more"),
    (r"\. Choose from: ", ": one of "),
)

# Flags of other image programs, and what to do instead.
_NO_STEPS = "autoregressive models have no denoising steps; --decoder and --window set the speed"
ADVICE = {
    "--steps": _NO_STEPS,
    "--num-inference-steps": _NO_STEPS,
    "--lora": "adapters cannot be loaded; merge it into the weights and give the result as --model",
}


def report(message: str, hint: str, code: int) -> int:
    """Print an error on stderr and return the exit code."""
    typer.secho(
        "sjdvp: error: ", fg=None if os.environ.get("NO_COLOR") else "red", nl=False, err=True
    )
    typer.echo(message + (f"\n  {hint}" if hint else ""), err=True)
    return code


def explain(error: typer.TyperException) -> tuple[str, str]:
    """Return message and hint for a mistake on the command line."""
    option = getattr(error, "option_name", "")
    if option in ADVICE:
        return f"there is no {option}", ADVICE[option]
    near = getattr(error, "possibilities", None)
    if near:
        return _plain(error.message), f"did you mean {' or '.join(sorted(near))}?"
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "sjdvp"
    return _plain(error.format_message()), f"`{command} --help` shows all options"


def _plain(message: str) -> str:
    """Reword a message of typer: one line, no capital, no full stop."""
    message = " ".join(message.split()).replace("Value error, ", "").rstrip(".")
    for theirs, ours in _WORDS:
        message = re.sub(theirs, ours, message)
    return message[:1].lower() + message[1:]
