"""One forward of the model over the windows of all rows, guidance included. Above this line nobody sees two branches."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from sjdvp.interfaces import ImageModel, Prompt, PromptRow
from sjdvp.kv_cache import aligned
from sjdvp.sampling import apply_cfg

# Matrix products of 4 rows and more give each row the same bits whatever the number of rows (measured: oneDNN from 2 on, MKL in
# float32 from 4 on); with fewer rows other kernels run. So a narrow window is padded, and a image does not depend on the batch.
_MIN_PRODUCT_ROWS = 4

# Attention looks at the first slots alone, in a few lengths. torch's CPU kernel goes through keys in blocks of 512, and a block
# that is wholly masked changes no bit: with multiples of 512 a row does not notice how far the longest row of its batch has come.
# (Multiples of 128 or 256 do not have this property: measured.) In 16 bits and on GPUs the last bits depend on the batch anyway.
_EXACT_UNIT = 512
_FINE_UNIT = 64
_MOST_LENGTHS = 8


class ModelRunner:
    """The transformer with its cache: B rows, or 2B with guidance (conditional rows first), each with a prompt length of its own.

    A row's slots hold its prompt at 0..P-1 and the code of image position i at P + i.
    """

    def __init__(self, model: ImageModel, batch_size: int, window: int, cfg_scale: float) -> None:
        self.model, self.cfg_scale = model, cfg_scale
        self.batch_size, self.window = batch_size, window
        self.n_branches = 1 if cfg_scale == 1 else 2
        n_transformer = batch_size * self.n_branches
        self._width = max(window, -(-_MIN_PRODUCT_ROWS // n_transformer))
        kv_length = aligned(model.max_prompt + model.grid.length + self._width)
        unit = (
            _EXACT_UNIT if model.device.type == "cpu" and model.dtype.itemsize >= 4 else _FINE_UNIT
        )
        apart = -(-kv_length // (_MOST_LENGTHS * unit)) * unit
        self.kv_buckets = tuple(
            min(end, kv_length) for end in range(apart, kv_length + apart, apart)
        )
        self._n_prompt = [0] * batch_size  # of the longer branch
        self._cache = model.new_cache(n_transformer, kv_length)
        self._start_R = torch.zeros(n_transformer, dtype=torch.int64, device=model.device)
        self._visible_RC = torch.ones(
            n_transformer, kv_length, dtype=torch.bool, device=model.device
        )
        self._slot_C = torch.arange(kv_length, device=model.device)

    def prefill(self, row: int, prompt: Prompt) -> Tensor:
        """Fill the row's cache with the prompt; return the guided logits of image position 0 [1, V]."""
        branches = (prompt.cond, prompt.uncond)[: self.n_branches]
        rows = [row + branch * self.batch_size for branch in range(self.n_branches)]
        lengths = [len(branch.visible_P) for branch in branches]
        n_prompt = max(lengths)
        x_RPD = torch.stack(
            [
                pad(branch.embeds_PD, (0, 0, 0, n_prompt - len(branch.embeds_PD)))
                for branch in branches
            ]
        )
        visible_RP = torch.stack([_padded(branch, n_prompt) for branch in branches])
        slots_RP = torch.arange(n_prompt, device=x_RPD.device).expand(len(branches), -1)
        cache = self.model.new_cache(len(branches), n_prompt)
        h_RPD = self.model.hidden(x_RPD, slots_RP, _mask(slots_RP, slots_RP[0], visible_RP), cache)
        self._cache.copy_sequences(rows, cache)
        self._n_prompt[row] = n_prompt
        self._start_R[rows] = torch.tensor(lengths, device=x_RPD.device)
        self._visible_RC[rows] = True
        self._visible_RC[rows, :n_prompt] = visible_RP
        last_RD = torch.stack([h_RPD[branch, length - 1] for branch, length in enumerate(lengths)])
        return self._guided(self.model.logits(last_RD))

    def kv_bucket(self, places: Mapping[int, int]) -> int:
        """Return how many slots the rows forward_pass at when row b's window starts at position places[b]: one of `lengths`."""
        end = max(
            (self._n_prompt[row] + place + self._width for row, place in places.items()), default=0
        )
        return next(length for length in self.kv_buckets if length >= min(end, self.kv_buckets[-1]))

    def __call__(self, tokens_BW: Tensor, pos_BW: Tensor, kv_length: int | None = None) -> Tensor:
        """Feed tokens at image positions; return the guided logits of the positions that follow [B, W, V].

        Only the first `kv_length` slots are looked at: what `kv_bucket` says, or all. Slots that need more are idle.
        """
        extra = self._width - self.window
        if extra:
            tokens_BW = pad(tokens_BW, (0, extra))
            pos_BW = torch.cat([pos_BW, pos_BW[:, -1:] + 1 + self._slot_C[:extra]], 1)
        x_BWD = self.model.embed(tokens_BW, pos_BW)
        slots_RW = pos_BW.repeat(self.n_branches, 1) + self._start_R[:, None]
        mask_R1WC = _mask(slots_RW, self._slot_C[:kv_length], self._visible_RC[:, :kv_length])
        h_RWD = self.model.hidden(
            x_BWD.repeat(self.n_branches, 1, 1), slots_RW, mask_R1WC, self._cache
        )
        return self._guided(self.model.logits(h_RWD))[:, : self.window]

    def _guided(self, logits_R: Tensor) -> Tensor:
        if self.n_branches == 1:
            return logits_R
        cond, uncond = logits_R.to(torch.promote_types(logits_R.dtype, torch.float32)).chunk(2)
        return apply_cfg(cond, uncond, self.cfg_scale)


def _padded(branch: PromptRow, n_prompt: int) -> Tensor:
    """Return the visibility of a branch padded on the right; pads lie after every query that is read, so they need no hiding."""
    return pad(branch.visible_P, (0, n_prompt - len(branch.visible_P)), value=True)


def _mask(slots_RW: Tensor, slot_C: Tensor, visible_RC: Tensor) -> Tensor:
    """Return which slots each token attends to [R, 1, W, C]: visible ones up to its own, and always itself."""
    own_RW1 = slots_RW[..., None]
    return (((slot_C <= own_RW1) & visible_RC[:, None]) | (slot_C == own_RW1))[:, None]
