"""The stand-in for what people run today: speculative Jacobi decoding in the published style, on any transformers trunk.

Written after the structure of the official loop, not copied from it: eager modules, a DynamicCache that is cropped each round, a
head and samplers over the whole vocabulary, other modalities masked away, and a read by the host for every draft that is tested.
"""

import torch
from torch import Tensor
from transformers import DynamicCache


class PublishedLoop:
    """One image at a time, with guidance: the conditional and the unconditional row go through the trunk together."""

    def __init__(self, decoder, head: Tensor, codes: range, window: int, cfg_scale: float, top_k: int, accept: int | None = None):
        """`accept` scripts how many drafts stand in each round, so that time does not depend on what random weights accept."""
        self.decoder, self.head, self.codes = decoder, head, codes
        self.window, self.cfg_scale, self.top_k, self.accept = window, cfg_scale, top_k, accept
        self.reads = 0

    @torch.inference_mode()
    def start(self, prompt_RP: Tensor) -> None:
        """Read the prompt of both branches."""
        self.cache = DynamicCache(config=self.decoder.config)
        self.decoder(input_ids=prompt_RP, cache=self.cache, use_cache=True)
        self.last = prompt_RP[:1, -1:]
        self.drafts = torch.randint(self.codes.start, self.codes.stop, (1, self.window - 1))
        self.q = torch.full((self.window - 1, self.head.shape[0]), 1 / len(self.codes))
        self.done = 0

    def forward(self) -> Tensor:
        """Return the laws of the window [W, vocabulary]."""
        ids = torch.cat([self.last, self.drafts], 1).repeat(2, 1)
        hidden = self.decoder(input_ids=ids, cache=self.cache, use_cache=True).last_hidden_state
        cond, uncond = torch.nn.functional.linear(hidden, self.head).float().chunk(2)
        logits = uncond + self.cfg_scale * (cond - uncond)
        outside = torch.ones(logits.shape[-1], dtype=torch.bool)
        outside[self.codes.start : self.codes.stop] = False
        logits = logits.masked_fill(outside, -torch.inf)
        kth = logits.topk(self.top_k, dim=-1).values[..., -1:]
        return logits.masked_fill(logits < kth, -torch.inf).softmax(-1)[0]

    @torch.inference_mode()
    def step(self) -> int:
        """Take one round; return how many codes it committed."""
        p = self.forward()
        uniform = torch.rand(self.window - 1, p.shape[-1])
        stood = 0
        for i in range(self.window - 1):
            code = self.drafts[0, i]
            self.reads += 1
            keep = bool(uniform[i, code] < p[i, code] / self.q[i, code])
            if self.accept is not None:
                keep = i < self.accept
            if not keep:
                break
            stood += 1
        law = p[stood]
        if stood < self.window - 1:
            rest = (law - self.q[stood]).clamp(min=0)
            law = rest / rest.sum() if float(rest.sum()) > 0 else law
            self.reads += 1
        self.last = torch.multinomial(law, 1)[None]
        if stood + 1 < self.window:
            self.cache.crop(stood + 1 - self.window)
        tail = torch.multinomial(p[stood + 1 :], 1).T if stood < self.window - 1 else self.drafts[:, :0]
        fresh = torch.randint(self.codes.start, self.codes.stop, (1, self.window - 1 - tail.shape[1]))
        self.drafts = torch.cat([tail, fresh], 1)
        uniform_law = torch.full((fresh.shape[1], p.shape[-1]), 1 / len(self.codes))
        self.q = torch.cat([p[stood + 1 :][: tail.shape[1]], uniform_law])
        self.done += stood + 1
        return stood + 1
