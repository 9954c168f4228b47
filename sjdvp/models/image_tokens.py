"""Where a vocabulary keeps its image tokens, from the names of its tokens."""

import re

from tokenizers import Tokenizer

from sjdvp.errors import WeightsError

_LETTERS = str.maketrans("ABCDEFGHIJ", "0123456789")


def chameleon_image_ids(tokenizer: Tokenizer) -> range:
    """Return the ids of Chameleon's image tokens, whose names spell the code in letters: IMGIMGBCZ is code 12."""
    return _tokens(tokenizer, re.compile(r"IMGIMG([A-J]+)Z"), expected_first=4)


def emu3_image_ids(tokenizer: Tokenizer) -> range:
    """Return the ids of Emu3's image tokens: <|visual token 000012|> is code 12."""
    return _tokens(tokenizer, re.compile(r"<\|visual token (\d+)\|>"), expected_first=None)


def _tokens(tokenizer: Tokenizer, pattern: re.Pattern[str], expected_first: int | None) -> range:
    ids: dict[int, int] = {}
    for name, token in tokenizer.get_vocab().items():
        match = pattern.fullmatch(name)
        if match:
            ids[int(match[1].translate(_LETTERS))] = token
    if not ids:
        raise WeightsError(
            f"the tokenizer has no tokens named like {pattern.pattern}",
            "is it the tokenizer of this model?",
        )
    first = ids.get(0, -1)
    if (
        expected_first not in (None, first)
        or any(token != first + code for code, token in ids.items())
        or max(ids) != len(ids) - 1
    ):
        raise WeightsError(
            "the tokenizer's image tokens are not in one run from code 0",
            "is it the tokenizer of this model?",
        )
    return range(first, first + len(ids))
