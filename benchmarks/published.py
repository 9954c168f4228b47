"""The stand-in for what people run today: speculative Jacobi decoding as the published loop does it, on any transformers transformer.

Written after the structure of the official loop for Lumina-mGPT, not copied from it. A step there, outside the transformer, and here:

- inputs: the host asks whether this is the first step and whether guidance is on; fresh drafts are uniform, their distributions one-hot over
  the vocabulary; the window's distributions are put together anew from three parts, each by a mask of positions; mask and position ids are
  built anew for all that has been read;
- head over the whole vocabulary at every place, in float32 from there on; a copy; guidance;
- grammar, top-k and softmax over the whole vocabulary at every place (`processors.py`); temperature 1 and no top-p, as there;
- a draw by torch.multinomial at every place of the window, each step, of which the tail becomes the next drafts;
- a table of uniforms as large as the distributions, a copy of the distributions, then draft after draft: three forward_pass-ups and a comparison, each a
  read by the host; the distribution of an accepted draft is copied into place;
- the residual goes through grammar, top-k and softmax once more, and torch.multinomial;
- a DynamicCache, concatenated at each step and cut back by views; the committed distributions are concatenated too.

Left out, so the stand-in is leaner: bookkeeping that nothing reads, the check whether a mask is needed, autocast, the streamer, and
the grammar tables, which the official code builds from Python lists for each image.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import DynamicCache

from benchmarks.processors import Grammar, TopK, Vocabulary, count


class PublishedLoop:
    """One image at a time, with guidance: the conditional and the unconditional row go through the transformer together."""

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
        """`accept` scripts how many drafts stand in each step, so that time does not depend on what random weights accept."""
        self.decoder, self.head_VD, self.side = decoder, head_VD, side
        self.window, self.cfg_scale, self.top_k, self.accept = window, cfg_scale, top_k, accept
        self.vocabulary = Vocabulary(len(head_VD))

    @torch.inference_mode()
    def start(self, prompt_1N: Tensor) -> None:
        """Read the prompt, all but its last token, which opens the image; the unconditional row sees that one alone."""
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
        self.probs_1MV = torch.zeros(1, 1, vocabulary.size).scatter(
            -1, prompt_1N[:, -1:, None], 1.0
        )  # of what was committed last
        self.tail_1T, self.tail_1TV = prompt_1N[:, :0], self.probs_1MV[:, :0]
        self.advance_positions()

    @torch.inference_mode()
    def step(self) -> int:
        """Take one step; return how many tokens it committed."""
        window_1W, q_1WV = self.inputs()
        guided = not bool(
            count(self.ids_1N, self.vocabulary.image_start)
            == count(self.ids_1N, self.vocabulary.image_end)
        )
        token_1W, p_1WV = self.sample(self.forward(window_1W, self.seen_RWC), guided=guided)
        n_new, token_1W, probs_1WV = self.verify(window_1W, q_1WV, token_1W, p_1WV)
        self.commit(n_new, token_1W, probs_1WV)
        return n_new

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Return the window and the distributions its drafts were drawn from."""
        n_fresh = self.window - 1 - self.tail_1T.shape[1]
        tokens = self.vocabulary.tokens
        fresh_1F = torch.randint(tokens.start, tokens.stop, (1, n_fresh))
        fresh_1FV = self.probs_1MV.new_zeros(1, n_fresh, self.vocabulary.size).scatter(
            -1, fresh_1F[..., None], 1.0
        )
        window_1W = torch.cat([self.ids_1N, self.tail_1T, fresh_1F], 1)[:, self.position_W]
        place, parts = self.ids_1N.shape[1] - 1, []
        for probs_1LV in (self.probs_1MV[:, -1:], self.tail_1TV, fresh_1FV):
            end = place + probs_1LV.shape[1]
            within = self.position_W[(self.position_W >= place) & (self.position_W < end)] - place
            parts.append(probs_1LV.index_select(1, within))
            place = end
        assert (
            self.position_W[0] != 0
        )  # there, too, each step asks whether it is the first, which would bring images with it
        return window_1W, torch.cat(parts, 1)

    def forward(self, ids_1W: Tensor, seen_RWC: Tensor) -> Tensor:
        """Return logits over the whole vocabulary, both branches [2, W, V]."""
        position_RW = (seen_RWC.cumsum(-1) - 1).masked_fill(seen_RWC == 0, 1)[
            :, -1, -ids_1W.shape[1] :
        ]
        mask_R1WC = torch.zeros(seen_RWC.shape, dtype=self.head_VD.dtype)
        mask_R1WC = mask_R1WC.masked_fill(seen_RWC == 0, torch.finfo(self.head_VD.dtype).min)[
            :, None
        ]
        hidden_RWD = self.decoder(
            input_ids=ids_1W.repeat(2, 1),
            position_ids=position_RW,
            attention_mask=mask_R1WC,
            cache=self.cache,
            use_cache=True,
        ).last_hidden_state
        return linear(hidden_RWD, self.head_VD).float()

    def sample(self, logits_2WV: Tensor, *, guided: bool) -> tuple[Tensor, Tensor]:
        """Return a draw from the distribution at each place of the window, and the distributions."""
        cond, uncond = logits_2WV[:, -self.window :].clone().chunk(2)
        p_1WV = self.processed(
            self.ids_1N, self.cfg_scale * (cond - uncond) + uncond if guided else cond
        )
        token_1W = torch.multinomial(p_1WV.flatten(0, 1), 1).squeeze(1)[None]
        return token_1W * self.unfinished_1, p_1WV

    def processed(self, ids_1N: Tensor, logits_1WV: Tensor) -> Tensor:
        for processor in self.processors:
            logits_1WV = processor(ids_1N, logits_1WV)
        return logits_1WV.softmax(-1)

    def verify(
        self, window_1W: Tensor, q_1WV: Tensor, token_1W: Tensor, p_1WV: Tensor
    ) -> tuple[int, Tensor, Tensor]:
        """Test draft after draft; return how many tokens are committed, the tokens, and the distributions that are stored with them."""
        uniform_1WV = torch.rand(p_1WV.shape)
        token_1W, probs_1WV = token_1W.clone(), p_1WV.clone()
        for i in range(1, self.window):
            draft = window_1W[0, i]
            ratio = (p_1WV[0, i - 1, draft] / q_1WV[0, i, draft]).clamp(max=1)
            stands = bool(uniform_1WV[0, i, draft] < ratio)
            if self.accept is not None:
                stands = i <= self.accept
            if not stands:
                before_1N = torch.cat([self.ids_1N, token_1W[:, : i - 1]], 1)
                rest_11V = (p_1WV[:, i - 1 : i] - q_1WV[:, i : i + 1]).clamp(min=0).log()
                token_1W[0, i - 1] = torch.multinomial(
                    self.processed(before_1N, rest_11V)[0], 1
                ).squeeze()
                return i, token_1W, probs_1WV
            token_1W[0, i - 1] = draft
            probs_1WV[0, i - 1] = q_1WV[0, i]
        return self.window, token_1W, probs_1WV

    def commit(self, n_new: int, token_1W: Tensor, probs_1WV: Tensor) -> None:
        """Append what is committed, keep the rest as drafts, and cut back the cache and the mask."""
        self.ids_1N = torch.cat([self.ids_1N, token_1W[:, :n_new]], 1)
        self.probs_1MV = torch.cat([self.probs_1MV[:, -1:], probs_1WV[:, :n_new]], 1)
        self.tail_1T, self.tail_1TV = token_1W[:, n_new:], probs_1WV[:, n_new:]
        n_false = self.window - n_new
        if n_false:
            self.cache.crop(-n_false)
            self.position_W = self.position_W[:-n_false]
            self.seen_RWC = self.seen_RWC[:, :-n_false, :-n_false]
        self.unfinished_1 = self.unfinished_1 & ~(self.ids_1N[:, -1] == self.vocabulary.end_of_text)
        self.over = bool(self.unfinished_1.max() == 0)
        self.advance_positions()

    def advance_positions(self) -> None:
        """Build position ids and mask of the next window after those of the last."""
        last, window = self.position_W[-1], self.window
        self.position_W = torch.arange(last + 1, last + window + 1)
        past_R1C = self.seen_RWC[:, -1:]
        seen_RWC = torch.ones(2, window, past_R1C.shape[-1] + window, dtype=torch.long)
        seen_RWC[..., : past_R1C.shape[-1]] = past_R1C
        seen_RWC[..., past_R1C.shape[-1] :] = seen_RWC[0, :, past_R1C.shape[-1] :].tril()
        self.seen_RWC = seen_RWC
