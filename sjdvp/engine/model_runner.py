"""One forward pass over the windows of all slots; hides the two branches of CFG."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from sjdvp.interfaces import EncodedPrompt, PromptBranch
from sjdvp.kv_cache import aligned
from sjdvp.models.base import ImageModel
from sjdvp.models.layers import EAGER_PARTS, LayerParts
from sjdvp.sampling import apply_cfg

# Matrix products with 4 rows and more give each row the same bits whatever their number (measured:
# oneDNN from 2 rows on, MKL in float32 from 4 on); with fewer rows other kernels run. So a narrow
# window is padded, and an image does not depend on the batch.
_MIN_PRODUCT_ROWS = 4

# Attention reads only the first slots of the cache, in a few lengths. torch's CPU kernel takes keys
# in blocks of 512, and a wholly masked block changes no bit: with multiples of 512 a sequence does
# not depend on the longest one of its batch. (Not so with multiples of 128 or 256: measured.) In 16
# bits and on GPUs the last bits depend on the batch anyway.
_EXACT_UNIT = 512
_FINE_UNIT = 64
# A bucket costs a GPU one capture, and all captures share the memory of one: with 16 a growing
# sequence reads 54 % of its cache on average, with 8 it reads 57 %; 50 % are in use.
_MAX_BUCKETS = 16
_PROMPT_UNIT = 16  # prompts of like length share a shape: a new one costs a GPU up to 450 ms


class ModelRunner:
    """The transformer with its KV cache: B sequences, or 2B with CFG (conditional first).

    A sequence's cache slots hold its prompt at 0..P-1 and the token of image position i at P + i.
    """

    def __init__(
        self,
        model: ImageModel,
        batch_size: int,
        window: int,
        cfg_scale: float,
        parts: LayerParts = EAGER_PARTS,
        *,
        cfg_interval: int = -1,
        guided: bool | None = None,
    ) -> None:
        """Allocate the cache; `parts` are those of a layer in a step, which may be compiled.

        `guided` False: one branch, which is enough for CFG scale 1. None: by `cfg_scale`, the scale
        of a prompt that comes without one. For `cfg_interval` see `SamplingConfig`.
        """
        self.model, self.cfg_scale, self._parts = model, cfg_scale, parts
        self._cfg_interval = cfg_interval
        self.batch_size, self.window = batch_size, window
        self.n_branches = 1 + (cfg_scale != 1 if guided is None else guided)
        n_sequences = batch_size * self.n_branches
        self._width = max(window, -(-_MIN_PRODUCT_ROWS // n_sequences))
        kv_length = aligned(model.max_prompt + model.layout.length + self._width)
        self.kv_buckets = _buckets(kv_length, model.device, model.dtype)
        self._n_prompt = [0] * batch_size  # of the longer branch
        self._cache = model.new_cache(n_sequences, kv_length)
        device = model.device
        self._start_R = torch.zeros(n_sequences, dtype=torch.int64, device=device)
        self._visible_RC = torch.ones(n_sequences, kv_length, dtype=torch.bool, device=device)
        self._slot_C = torch.arange(kv_length, device=device)
        logits_dtype = torch.promote_types(model.dtype, torch.float32)
        self._scale_B = torch.full((batch_size,), cfg_scale, dtype=logits_dtype, device=device)

    def prefill(self, slot: int, prompt: EncodedPrompt, cfg_scale: float | None = None) -> Tensor:
        """Fill the cache of a batch slot with a prompt; return the logits of position 0 [1, V].

        `cfg_scale` is that of the slot from here on; None: the one of all prompts.
        """
        self._scale_B[slot].fill_(self.cfg_scale if cfg_scale is None else cfg_scale)
        branches = (prompt.cond, prompt.uncond)[: self.n_branches]
        sequences = slice(slot, None, self.batch_size)  # of all branches
        lengths = [len(branch.visible_P) for branch in branches]
        n_prompt = -(-max(lengths) // _PROMPT_UNIT) * _PROMPT_UNIT
        x_RPD = torch.stack([_padded_embeds(branch, n_prompt) for branch in branches])
        visible_RP = torch.stack([_padded_visible(branch, n_prompt) for branch in branches])
        slots_RP = torch.arange(n_prompt, device=x_RPD.device).expand(len(branches), -1)
        cache = self.model.new_cache(len(branches), n_prompt)
        h_RPD = self.model.hidden(x_RPD, slots_RP, _mask(slots_RP, slots_RP[0], visible_RP), cache)
        self._cache.copy_sequences(sequences, cache)
        self._n_prompt[slot] = max(lengths)
        self._start_R[sequences] = torch.tensor(lengths, device=x_RPD.device)
        self._visible_RC[sequences] = True
        self._visible_RC[sequences, :n_prompt] = visible_RP
        last_RD = torch.stack([h_RPD[branch, length - 1] for branch, length in enumerate(lengths)])
        logits_R1V = self.model.logits(last_RD)[:, None]
        return self._merge_branches(logits_R1V, self._scale_B[slot].view(1, 1))[:, 0]

    def kv_bucket(self, n_committed: Mapping[int, int]) -> int:
        """Return the KV length bucket for the next step, given each slot's committed positions."""
        ends = [self._n_prompt[slot] + n + self._width for slot, n in n_committed.items()]
        longest = min(max(ends, default=0), self.kv_buckets[-1])
        return next(length for length in self.kv_buckets if length >= longest)

    def __call__(self, tokens_BW: Tensor, pos_BW: Tensor, kv_length: int | None = None) -> Tensor:
        """Feed tokens at image positions; return the logits of the positions after them [B, W, V].

        Attention reads the first `kv_length` cache slots: what `kv_bucket` says, or all.
        """
        extra = self._width - self.window
        if extra:
            tokens_BW = pad(tokens_BW, (0, extra))
            pos_BW = torch.cat([pos_BW, pos_BW[:, -1:] + 1 + self._slot_C[:extra]], 1)
        x_BWD = self.model.embed(tokens_BW, pos_BW)
        slots_RW = pos_BW.repeat(self.n_branches, 1) + self._start_R[:, None]
        mask_R1WC = _mask(slots_RW, self._slot_C[:kv_length], self._visible_RC[:, :kv_length])
        x_RWD = x_BWD.repeat(self.n_branches, 1, 1)
        h_RWD = self.model.hidden(x_RWD, slots_RW, mask_R1WC, self._cache, self._parts)
        scale_BW = self._scale_B[:, None].expand_as(pos_BW)
        if self._cfg_interval >= 0:
            scale_BW = torch.where(pos_BW <= self._cfg_interval, scale_BW, 1.0)
        return self._merge_branches(self.model.logits(h_RWD), scale_BW)[:, : self.window]

    def _merge_branches(self, logits_RWV: Tensor, scale_BW: Tensor) -> Tensor:
        if self.n_branches == 1:
            return logits_RWV
        dtype = torch.promote_types(logits_RWV.dtype, torch.float32)
        cond_BWV, uncond_BWV = logits_RWV.to(dtype).chunk(2)
        return apply_cfg(cond_BWV, uncond_BWV, scale_BW)


def _buckets(kv_length: int, device: torch.device, dtype: torch.dtype) -> tuple[int, ...]:
    """Return the KV length buckets, shortest first; the last one is the whole cache."""
    unit = _EXACT_UNIT if device.type == "cpu" and dtype.itemsize >= 4 else _FINE_UNIT
    spacing = -(-kv_length // (_MAX_BUCKETS * unit)) * unit
    return tuple(min(end, kv_length) for end in range(spacing, kv_length + spacing, spacing))


def _padded_embeds(branch: PromptBranch, n_prompt: int) -> Tensor:
    return pad(branch.embeds_PD, (0, 0, 0, n_prompt - len(branch.embeds_PD)))


def _padded_visible(branch: PromptBranch, n_prompt: int) -> Tensor:
    # Padding lies after every query whose result is read, so it need not be hidden.
    return pad(branch.visible_P, (0, n_prompt - len(branch.visible_P)), value=True)


def _mask(slots_RW: Tensor, slot_C: Tensor, visible_RC: Tensor) -> Tensor:
    """Return the slots each token attends to [R, 1, W, C]: visible ones up to its own, and it."""
    own_RW1 = slots_RW[..., None]
    return (((slot_C <= own_RW1) & visible_RC[:, None]) | (slot_C == own_RW1))[:, None]
