"""Prompts to token ids and embeddings; special tokens and image tokens by their names."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from sjdvp.errors import PromptError, WeightsError
from sjdvp.interfaces import EncodedPrompt, PromptBranch

MAX_PROMPT = 320  # tokens of a branch; every sequence has this many cache slots, used or not
_IS_IT = "is it the tokenizer of this model? see model.tokenizer"
_DIGITS = str.maketrans("ABCDEFGHIJ", "0123456789")


def open_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json. Raises WeightsError when the file is something else."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise WeightsError(
            f"{path}: not a tokenizer file ({error})", "model.tokenizer takes a tokenizer.json"
        ) from error
    tokenizer.no_truncation()  # `shorten` truncates, and reports it
    tokenizer.no_padding()
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text, without special tokens around it."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def shorten(ids: list[int], limit: int, tail: int = 0) -> tuple[list[int], bool]:
    """Truncate ids to `limit` but keep the last `tail`; return them and whether any dropped."""
    if len(ids) <= limit:
        return ids, False
    end = ids[len(ids) - tail :]
    return ids[: limit - len(end)] + end, True


def special_ids(
    tokenizer: Tokenizer, names: Sequence[str], expected: Mapping[str, int], vocab_size: int
) -> list[int]:
    """Return the ids of special tokens by name.

    Raises WeightsError for a name that the vocabulary lacks, an id that differs from the documented
    one (`expected`), or one beyond `vocab_size`: the tokenizer is another model's.
    """
    ids = []
    for name in names:
        found: int | None = tokenizer.token_to_id(name)
        if found is None:
            raise WeightsError(f"the tokenizer has no token {name!r}", _IS_IT)
        if found != expected.get(name, found) or found >= vocab_size:
            wanted = f"id {expected[name]}" if name in expected else f"an id below {vocab_size}"
            raise WeightsError(
                f"the tokenizer gives {name!r} the id {found}; this model expects {wanted}", _IS_IT
            )
        ids.append(found)
    return ids


def chameleon_image_ids(tokenizer: Tokenizer) -> range:
    """Return the ids of Chameleon's image tokens: IMGIMGBCZ is 12, with the digits A to J."""
    return _image_ids(tokenizer, re.compile(r"IMGIMG([A-J]+)Z"), expected_first=4)


def emu3_image_ids(tokenizer: Tokenizer) -> range:
    """Return the ids of Emu3's image tokens: <|visual token 000012|> is image token 12."""
    return _image_ids(tokenizer, re.compile(r"<\|visual token (\d+)\|>"), expected_first=None)


def _image_ids(tokenizer: Tokenizer, pattern: re.Pattern[str], expected_first: int | None) -> range:
    ids: dict[int, int] = {}
    for name, token_id in tokenizer.get_vocab().items():
        match = pattern.fullmatch(name)
        if match:
            ids[int(match[1].translate(_DIGITS))] = token_id
    if not ids:
        raise WeightsError(f"the tokenizer has no tokens named like {pattern.pattern}", _IS_IT)
    first = ids.get(0, -1)
    if (
        expected_first not in (None, first)
        or any(token_id != first + index for index, token_id in ids.items())
        or max(ids) != len(ids) - 1
    ):
        raise WeightsError("the ids of the tokenizer's image tokens are not consecutive", _IS_IT)
    return range(first, first + len(ids))


@dataclass(frozen=True)
class TokenPrompter:
    """Builds both branches of a prompt: start ids, the text in its template, end ids.

    `text_embeds` are the text embeddings. Each branch has its own positions, from 0. `negative` is
    the template of an unconditional branch with a text, for models that have one.
    """

    tokenizer: Tokenizer
    text_embeds: Tensor
    template: str  # the text to encode, with {prompt} in it
    start: list[int]
    end: list[int]
    uncond: Callable[[list[int]], list[int]]  # from the ids of the conditional branch
    limit: int = MAX_PROMPT  # tokens of a branch
    negative: str | None = None

    def __call__(self, text: str, negative: str | None = None) -> EncodedPrompt:
        """Encode a prompt; one that is too long loses the end of its text, never the template."""
        ids, truncated = self._encode(self.template, text)
        if negative is None:
            return self.of_ids(ids, truncated=truncated)
        if self.negative is None:
            raise PromptError("this model takes no negative prompt")
        uncond, too_long = self._encode(self.negative, negative)
        branches = self._branch(ids), self._branch(uncond)
        return EncodedPrompt(*branches, len(ids), truncated=truncated or too_long)

    def of_ids(self, ids: list[int], *, truncated: bool = False) -> EncodedPrompt:
        """Build a prompt from the ids of its conditional branch."""
        return EncodedPrompt(
            self._branch(ids), self._branch(self.uncond(ids)), len(ids), truncated=truncated
        )

    def _encode(self, template: str, text: str) -> tuple[list[int], bool]:
        """Return the ids of a branch, and whether its text was cut."""
        after = template.split("{prompt}")[1]
        limit = self.limit - len(self.start) - len(self.end)
        ids = encode(self.tokenizer, template.replace("{prompt}", text.strip()))
        n_after = len(encode(self.tokenizer, after)) if after else 0
        ids, truncated = shorten(ids, limit, tail=n_after)
        return [*self.start, *ids, *self.end], truncated

    def _branch(self, ids: list[int]) -> PromptBranch:
        ids_P = torch.tensor(ids, device=self.text_embeds.device)
        return PromptBranch(self.text_embeds[ids_P], torch.ones_like(ids_P, dtype=torch.bool))
