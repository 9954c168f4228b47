"""What the tests of prompt files share: write a file, read it, and compare rows."""

from pathlib import Path

import pytest

from sjdvp.errors import SjdvpError
from sjdvp.runs.prompts import PromptSet, ReadOptions, read_prompts


def read(folder: Path, name: str, data: bytes | str, **options: object) -> PromptSet:
    """Write `data` to a file of that name and read it."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_prompts(path, ReadOptions(**options))


def texts(prompts: PromptSet) -> list[str]:
    return [prompt.text for prompt in prompts.prompts]


def ids(prompts: PromptSet) -> list[str | None]:
    return [prompt.id for prompt in prompts.prompts]


def carried(prompts: PromptSet) -> list[dict[str, object]]:
    return [dict(prompt.extra) for prompt in prompts.prompts]


def refusal(folder: Path, name: str, data: bytes | str, **options: object) -> str:
    """Return message and advice of the error that reading must end with, exit code 2."""
    with pytest.raises(SjdvpError) as caught:
        read(folder, name, data, **options)
    assert caught.value.exit_code == 2
    return f"{caught.value} | {caught.value.hint}"
