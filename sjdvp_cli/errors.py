"""What a person sees when something is wrong: one line, and one of advice."""

import os
import re

import typer

# Words of the library that checks the values of flags, and ours.
_WORDS = (
    (r"Input should be a valid integer.*", "it must be a whole number"),
    (r"Input should be greater than or equal to (\S+)", r"it must be \1 or more"),
    (r"\. Choose from: ", ": one of "),
)

# Flags of other image programs, and what to do here instead.
_NO_STEPS = (
    "an autoregressive model has no denoising steps; speed is a matter of --decoder and --window"
)
ADVICE = {
    "--steps": _NO_STEPS,
    "--num-inference-steps": _NO_STEPS,
    "--negative-prompt": "these models take no negative prompt; --cfg-scale sets how strictly the prompt is followed",
    "--lora": "adapters are not loaded; merge it into the weights and give the result as --model",
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
    return _plain(
        error.format_message()
    ), f"`{context.command_path if context else 'sjdvp'} --help` lists what there is"


def _plain(message: str) -> str:
    """Word typer's message as ours are: one line, no capital, no full stop, no word of the library that checked it."""
    message = " ".join(message.split()).replace("Value error, ", "").rstrip(".")
    for theirs, ours in _WORDS:
        message = re.sub(theirs, ours, message)
    return message[:1].lower() + message[1:]
