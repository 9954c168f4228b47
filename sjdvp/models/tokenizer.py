"""Text to token ids, and the special ids a model needs, by their names in its own vocabulary."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from sjdvp.errors import WeightsError


def open_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizers` file. Raises WeightsError when it is none."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise WeightsError(
            f"{path}: not a tokenizer file ({error})", "model.tokenizer takes a tokenizer.json"
        ) from error
    tokenizer.no_truncation()  # what the file says of length is for somebody else's batches; who cuts here says so
    tokenizer.no_padding()
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text, without special tokens around it."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def special_ids(
    tokenizer: Tokenizer, names: Sequence[str], expected: Mapping[str, int], vocab_size: int
) -> list[int]:
    """Return the ids of tokens by name.

    Raises WeightsError for a name that the vocabulary lacks, an id that is not the documented one (`expected`), or one beyond the
    model's `vocab_size`: all three mean a tokenizer of another model.
    """
    ids = []
    for name in names:
        found: int | None = tokenizer.token_to_id(name)
        if found is None:
            raise WeightsError(
                f"the tokenizer has no token {name!r}",
                "is it the tokenizer of this model? see model.tokenizer",
            )
        if found != expected.get(name, found) or found >= vocab_size:
            wanted = f"id {expected[name]}" if name in expected else f"an id below {vocab_size}"
            raise WeightsError(
                f"the tokenizer gives {name!r} the id {found}; this model has {wanted}",
                "see model.tokenizer",
            )
        ids.append(found)
    return ids


def shorten(ids: list[int], limit: int, tail: int = 0) -> tuple[list[int], bool]:
    """Cut ids to `limit`, sparing the last `tail` of them; return them and whether any were cut."""
    if len(ids) <= limit:
        return ids, False
    end = ids[len(ids) - tail :]
    return ids[: limit - len(end)] + end, True
