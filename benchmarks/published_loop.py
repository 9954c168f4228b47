"""Speculative Jacobi decoding as published loops do it, on any transformers decoder.

Written after the structure of the official loop for Lumina-mGPT, not copied from it. Outside the
transformer, a step there and here does the following.

- Inputs: the host asks whether this is the first step and whether guidance is on. New draft tokens
  are uniform, their distributions one-hot over the vocabulary. The window's distributions are
  assembled from three parts, each by a mask of positions. Mask and position ids are built again.
- A head over the whole vocabulary at every position, in float32 from there on; a copy; guidance.
- Grammar, top-k and softmax over the whole vocabulary at every position; temperature 1, no top-p.
- torch.multinomial at every position of the window, whose tail becomes the next draft tokens.
- A table of uniform numbers as large as the distributions, a copy of the distributions, then draft
  token after draft token: three lookups and a comparison, each a read by the host.
- The residual goes through grammar, top-k and softmax once more, and torch.multinomial.
- A DynamicCache, concatenated at each step and cropped by views; so are committed distributions.

Left out, so this loop does less work: bookkeeping that nothing reads, the check whether a mask is
needed, autocast, the streamer, and the grammar tables, which the official code builds from Python
lists for each image.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import DynamicCache


@dataclass(frozen=True)
class Vocabulary:
    """The token ids that matter, as in the Chameleon family."""

    size: int = 65536
    image_tokens: range = range(4, 8196)
    image_end: int = 8196
    image_start: int = 8197
    row_end: int = 8803
    end_of_text: int = 8710


class Grammar:
    """Image tokens inside an image, a row end after each image row, the image end at its end.

    As there, it counts over all tokens whether the sequence is inside an image, and holds its sizes
    in tensors on the device, so that every comparison of positions is one more read by the host.
    """

    def __init__(self, vocabulary: Vocabulary, first: int, rows: int, columns: int):
        """`first` is the index of the image's first token."""
        self.vocabulary, self.first = vocabulary, first
        self.outside_V = torch.ones(vocabulary.size, dtype=torch.bool)
        self.outside_V[vocabulary.image_tokens.start : vocabulary.image_tokens.stop] = False
        row = torch.tensor(columns + 1)
        self.forced = ((row, vocabulary.row_end), (row * rows + 1, vocabulary.image_end))

    def __call__(self, ids_1N: Tensor, logits_1WV: Tensor) -> Tensor:
        ends = count(ids_1N, self.vocabulary.image_end)
        n_open = count(ids_1N, self.vocabulary.image_start) - ends
        if n_open == 0:
            return logits_1WV
        if n_open == 1:
            done, width = ids_1N.shape[1] - self.first, logits_1WV.shape[1]
            logits_1WV = torch.where(self.outside_V, -torch.inf, logits_1WV)
            for period, token in self.forced:
                low, high = multiples(done, width, period)
                if low <= high:
                    logits_1WV = logits_1WV.clone()
                    for i in range(low, high + 1):  # two reads
                        position = period * i - (done + 1)
                        logits_1WV[:, position] = -torch.inf
                        logits_1WV[:, position, token] = 0
        return logits_1WV


class TopK:
    """The k largest logits, by a sorted top-k; counts itself whether it is inside an image."""

    def __init__(self, vocabulary: Vocabulary, in_image: int, in_text: int = 10):
        self.vocabulary, self.in_image, self.in_text = vocabulary, in_image, in_text

    def __call__(self, ids_1N: Tensor, logits_1WV: Tensor) -> Tensor:
        ends = count(ids_1N, self.vocabulary.image_end)
        inside = count(ids_1N, self.vocabulary.image_start) == ends + 1
        k = self.in_image if inside else self.in_text
        kth = logits_1WV.topk(k, dim=-1).values[..., -1:]
        return logits_1WV.masked_fill(logits_1WV < kth, -torch.inf)


def count(ids_1N: Tensor, token: int) -> Tensor:
    return (ids_1N[0] == token).sum()


def multiples(done: int, width: int, period: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and last multiple of `period` in done + 1 .. done + width, in periods."""
    first = done + 1
    low = first // period + 1 if first % period != 0 else first // period
    return low, (done + width) // period


class PublishedLoop:
    """One image at a time, with guidance: both branches go through the transformer together."""

    def __init__(
        self,
        decoder,
        head_VD: Tensor,
        side: int,
        window: int,
        cfg_scale: float,
        top_k: int,
        accept: int | None = None,
    ):
        """`accept` scripts how many draft tokens are accepted in each step."""
        self.decoder, self.head_VD, self.side = decoder, head_VD, side
        self.window, self.cfg_scale, self.top_k, self.accept = window, cfg_scale, top_k, accept
        self.vocabulary = Vocabulary(len(head_VD))

    @torch.inference_mode()
    def start(self, prompt_1N: Tensor) -> None:
        """Prefill the prompt without its last token, which opens the image.

        The unconditional branch sees that last token alone.
        """
        vocabulary, n_prompt = self.vocabulary, prompt_1N.shape[1] - 1
        self.processors = (
            Grammar(vocabulary, n_prompt + 1, self.side, self.side),
            TopK(vocabulary, self.top_k),
        )
        self.cache = DynamicCache(config=self.decoder.config)
        self.ids_1N = prompt_1N
        self.seen_RWC = torch.ones(2, n_prompt, n_prompt, dtype=torch.long).tril()
        self.seen_RWC[1] = 0
        self.position_W = torch.arange(n_prompt)
        self.forward(prompt_1N[:, :-1], self.seen_RWC)
        self.unfinished_1 = torch.ones(1, dtype=torch.long)
        # The distributions of what was committed in the last step.
        self.probs_1MV = torch.zeros(1, 1, vocabulary.size).scatter(-1, prompt_1N[:, -1:, None], 1)
        self.tail_1T, self.tail_1TV = prompt_1N[:, :0], self.probs_1MV[:, :0]
        self.advance_positions()

    @torch.inference_mode()
    def step(self) -> int:
        """Take one step; return how many tokens it committed."""
        window_1W, q_1WV = self.inputs()
        starts = count(self.ids_1N, self.vocabulary.image_start)
        guided = not bool(starts == count(self.ids_1N, self.vocabulary.image_end))
        token_1W, p_1WV = self.sample(self.forward(window_1W, self.seen_RWC), guided=guided)
        n_new, token_1W, probs_1WV = self.verify(window_1W, q_1WV, token_1W, p_1WV)
        self.commit(n_new, token_1W, probs_1WV)
        return n_new

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Return the window, and the distributions its draft tokens were sampled from."""
        n_fresh = self.window - 1 - self.tail_1T.shape[1]
        tokens = self.vocabulary.image_tokens
        fresh_1F = torch.randint(tokens.start, tokens.stop, (1, n_fresh))
        zeros_1FV = self.probs_1MV.new_zeros(1, n_fresh, self.vocabulary.size)
        fresh_1FV = zeros_1FV.scatter(-1, fresh_1F[..., None], 1.0)
        window_1W = torch.cat([self.ids_1N, self.tail_1T, fresh_1F], 1)[:, self.position_W]
        begin, parts = self.ids_1N.shape[1] - 1, []
        for probs_1LV in (self.probs_1MV[:, -1:], self.tail_1TV, fresh_1FV):
            end = begin + probs_1LV.shape[1]
            within = self.position_W[(self.position_W >= begin) & (self.position_W < end)] - begin
            parts.append(probs_1LV.index_select(1, within))
            begin = end
        # There, too, each step asks whether it is the first, which would come with images.
        assert self.position_W[0] != 0
        return window_1W, torch.cat(parts, 1)

    def forward(self, ids_1W: Tensor, seen_RWC: Tensor) -> Tensor:
        """Return logits over the whole vocabulary, both branches [2, W, V]."""
        width, dtype = ids_1W.shape[1], self.head_VD.dtype
        position_RWC = (seen_RWC.cumsum(-1) - 1).masked_fill(seen_RWC == 0, 1)
        mask_RWC = torch.zeros(seen_RWC.shape, dtype=dtype)
        mask_RWC = mask_RWC.masked_fill(seen_RWC == 0, torch.finfo(dtype).min)
        hidden_RWD = self.decoder(
            input_ids=ids_1W.repeat(2, 1),
            position_ids=position_RWC[:, -1, -width:],
            attention_mask=mask_RWC[:, None],
            cache=self.cache,
            use_cache=True,
        ).last_hidden_state
        return linear(hidden_RWD, self.head_VD).float()

    def sample(self, logits_2WV: Tensor, *, guided: bool) -> tuple[Tensor, Tensor]:
        """Return a sample at each position of the window, and the distributions."""
        cond, uncond = logits_2WV[:, -self.window :].clone().chunk(2)
        logits_1WV = self.cfg_scale * (cond - uncond) + uncond if guided else cond
        p_1WV = self.processed(self.ids_1N, logits_1WV)
        token_1W = torch.multinomial(p_1WV.flatten(0, 1), 1).squeeze(1)[None]
        return token_1W * self.unfinished_1, p_1WV

    def processed(self, ids_1N: Tensor, logits_1WV: Tensor) -> Tensor:
        for processor in self.processors:
            logits_1WV = processor(ids_1N, logits_1WV)
        return logits_1WV.softmax(-1)

    def verify(
        self, window_1W: Tensor, q_1WV: Tensor, token_1W: Tensor, p_1WV: Tensor
    ) -> tuple[int, Tensor, Tensor]:
        """Test one draft token after the other.

        Returns how many tokens are committed, the tokens, and the distributions stored with them.
        """
        uniform_1WV = torch.rand(p_1WV.shape)
        token_1W, probs_1WV = token_1W.clone(), p_1WV.clone()
        for i in range(1, self.window):
            draft = window_1W[0, i]
            ratio = (p_1WV[0, i - 1, draft] / q_1WV[0, i, draft]).clamp(max=1)
            accepted = bool(uniform_1WV[0, i, draft] < ratio)
            if self.accept is not None:
                accepted = i <= self.accept
            if not accepted:
                ids_1N = torch.cat([self.ids_1N, token_1W[:, : i - 1]], 1)
                residual_11V = (p_1WV[:, i - 1 : i] - q_1WV[:, i : i + 1]).clamp(min=0)
                probs_1V = self.processed(ids_1N, residual_11V.log())[0]
                token_1W[0, i - 1] = torch.multinomial(probs_1V, 1).squeeze()
                return i, token_1W, probs_1WV
            token_1W[0, i - 1] = draft
            probs_1WV[0, i - 1] = q_1WV[0, i]
        return self.window, token_1W, probs_1WV

    def commit(self, n_new: int, token_1W: Tensor, probs_1WV: Tensor) -> None:
        """Append what is committed, keep the rest as draft tokens, crop the cache and the mask."""
        self.ids_1N = torch.cat([self.ids_1N, token_1W[:, :n_new]], 1)
        self.probs_1MV = torch.cat([self.probs_1MV[:, -1:], probs_1WV[:, :n_new]], 1)
        self.tail_1T, self.tail_1TV = token_1W[:, n_new:], probs_1WV[:, n_new:]
        n_rejected = self.window - n_new
        if n_rejected:
            self.cache.crop(-n_rejected)
            self.position_W = self.position_W[:-n_rejected]
            self.seen_RWC = self.seen_RWC[:, :-n_rejected, :-n_rejected]
        self.unfinished_1 = self.unfinished_1 & ~(self.ids_1N[:, -1] == self.vocabulary.end_of_text)
        self.over = bool(self.unfinished_1.max() == 0)
        self.advance_positions()

    def advance_positions(self) -> None:
        """Build the position ids and the mask of the next window."""
        last, window = self.position_W[-1], self.window
        self.position_W = torch.arange(last + 1, last + window + 1)
        past_R1C = self.seen_RWC[:, -1:]
        seen_RWC = torch.ones(2, window, past_R1C.shape[-1] + window, dtype=torch.long)
        seen_RWC[..., : past_R1C.shape[-1]] = past_R1C
        seen_RWC[..., past_R1C.shape[-1] :] = seen_RWC[0, :, past_R1C.shape[-1] :].tril()
        self.seen_RWC = seen_RWC
