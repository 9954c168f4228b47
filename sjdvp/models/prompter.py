"""Prompts made of token ids: a start, the text in its template, an end; and the ids of the unconditional branch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from sjdvp.interfaces import Prompt, PromptRow
from sjdvp.models.tokenizer import encode, shorten

MAX_PROMPT = 320  # tokens of a branch; each costs a cache slot in every row, used or not


@dataclass(frozen=True)
class TokenPrompter:
    """Builds both branches of a prompt from the text embeddings [T, D]; each branch has positions of its own, from 0."""

    tokenizer: Tokenizer
    embeds_TD: Tensor
    template: str  # the text to encode, with {prompt} in it
    start: list[int]
    end: list[int]
    uncond: Callable[[list[int]], list[int]]  # from the ids of the conditional branch
    limit: int = MAX_PROMPT  # tokens of a branch

    def __call__(self, text: str) -> Prompt:
        """Build a prompt; a long one loses the end of its text, never the template or the special tokens."""
        after = self.template.split("{prompt}")[1]
        limit = self.limit - len(self.start) - len(self.end)
        ids = encode(self.tokenizer, self.template.replace("{prompt}", text.strip()))
        ids, truncated = shorten(
            ids, limit, tail=len(encode(self.tokenizer, after)) if after else 0
        )
        return self.of_ids([*self.start, *ids, *self.end], truncated=truncated)

    def of_ids(self, ids: list[int], *, truncated: bool = False) -> Prompt:
        """Build a prompt from the ids of its conditional branch."""
        return Prompt(
            self._row(ids), self._row(self.uncond(ids)), n_tokens=len(ids), truncated=truncated
        )

    def _row(self, ids: list[int]) -> PromptRow:
        ids_P = torch.tensor(ids, device=self.embeds_TD.device)
        return PromptRow(self.embeds_TD[ids_P], torch.ones_like(ids_P, dtype=torch.bool))
