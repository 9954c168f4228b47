"""Models made of a table of random logits, a loop that decodes with them, and the decoders."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from scipy.stats import chisquare
from torch import Tensor

from sjdvp import rng
from sjdvp.config import DecoderConfig, PredictionConfig, RelaxConfig, SamplingConfig
from sjdvp.decode.decoder import Decoder, make_decoder
from sjdvp.decode.distributions import Sparse
from sjdvp.decode.state import State
from sjdvp.decode.step import admit, decode_step, window_input
from sjdvp.decode.verify import nearest
from sjdvp.interfaces import ImageLayout
from sjdvp.sampling import apply_cfg, to_probs


@dataclass(frozen=True)
class TableLayout(ImageLayout):
    """Any columns of the image may be forced, and the last image row may be short."""

    forced: tuple[bool, ...] = ()

    @property
    def length(self) -> int:
        return len(self.forced)

    def forced_at(self, pos_BW: Tensor) -> Tensor:
        forced_S = torch.tensor(self.forced)
        return forced_S[pos_BW.clamp(0, self.length - 1)] & (pos_BW < self.length)


@dataclass
class TableModel:
    """A model small enough to enumerate: one line of logits for each prefix."""

    vocab_size: int
    forced: list[bool]
    stride: int
    sharpness: float = 1.5
    seed: int = 0
    table: Tensor = field(init=False)

    def __post_init__(self):
        n_lines = sum(self.vocab_size**length for length in range(len(self.forced) + 1))
        generator = torch.Generator().manual_seed(self.seed)
        self.table = self.sharpness * torch.randn(
            n_lines, self.vocab_size, generator=generator, dtype=torch.float64
        )

    @property
    def layout(self) -> ImageLayout:
        return TableLayout(0, self.stride, self.vocab_size, forced=tuple(self.forced))

    def above(self, i: int) -> int | None:
        """The position one image row up."""
        return i - self.stride if i >= self.stride else None

    def logits(self, sequences: Tensor, length: Tensor) -> Tensor:
        """Logits after the first `length` tokens of each sequence."""
        weight = self.vocab_size ** torch.arange(sequences.shape[-1])
        inside = torch.arange(sequences.shape[-1]) < length[..., None]
        offset = (self.vocab_size**length - 1) // (self.vocab_size - 1)
        return self.table[offset + (sequences * weight * inside).sum(-1)]

    def window_logits(self, state: State, window: int) -> Tensor:
        """What a forward pass over the window gives; past the end of the image, whatever."""
        S = len(self.forced)
        tokens_BW, pos_BW = window_input(state, window)
        out = []
        sequences = state.tokens_BS[:, :S].clone()
        for w in range(window):
            inside = pos_BW[:, w] < S
            sequences[inside, pos_BW[inside, w]] = tokens_BW[inside, w]
            out.append(self.logits(sequences, (pos_BW[:, w] + 1).clamp(max=S)))
        return torch.stack(out, 1)

    def joint(self, sampling: SamplingConfig) -> tuple[Tensor, Tensor]:
        """The exact distribution of whole images: every image [N, S] and its probability [N]."""
        S = len(self.forced)
        images = torch.tensor(
            list(
                itertools.product(
                    *[[0] if forced else range(self.vocab_size) for forced in self.forced]
                )
            )
        )
        probability = torch.ones(len(images), dtype=torch.float64)
        for i in range(S):
            forced = torch.full((len(images), 1), self.forced[i])
            distribution = to_probs(
                self.logits(images, torch.full((len(images),), i))[:, None], forced, sampling
            )
            probability *= distribution[:, 0].gather(1, images[:, i : i + 1])[:, 0]
        return images, probability


class GuidedModel(TableModel):
    """Two tables with CFG between them; image b of a batch has scale b modulo their number.

    With an interval, only the positions up to it + 1 are guided.
    """

    def __init__(
        self, cond: TableModel, uncond: TableModel, scales: tuple[float, ...], interval: int
    ) -> None:
        self.cond, self.uncond = cond, uncond
        self.scales, self.interval = scales, interval
        self.vocab_size, self.forced, self.stride = cond.vocab_size, cond.forced, cond.stride

    def logits(self, sequences: Tensor, length: Tensor) -> Tensor:
        """Logits after the first `length` tokens of each sequence [B, S]."""
        scale_B = torch.tensor(self.scales)[torch.arange(len(sequences)) % len(self.scales)]
        if self.interval >= 0:
            scale_B = torch.where(length - 1 <= self.interval, scale_B, 1.0)
        cond_BV, uncond_BV = (table.logits(sequences, length) for table in (self.cond, self.uncond))
        return apply_cfg(cond_BV[:, None], uncond_BV[:, None], scale_B[:, None])[:, 0]

    def of_scale(self, number: int) -> "GuidedModel":
        """The model whose images all have one of the scales."""
        return GuidedModel(self.cond, self.uncond, (self.scales[number],), self.interval)


@dataclass
class MarkovModel(TableModel):
    """Logits that depend on the last token and the one above it: images may be longer."""

    def __post_init__(self):
        generator = torch.Generator().manual_seed(self.seed)
        shape = ((self.vocab_size + 1) ** 2, self.vocab_size)
        self.table = self.sharpness * torch.randn(shape, generator=generator, dtype=torch.float64)

    def logits(self, sequences: Tensor, length: Tensor) -> Tensor:
        """Logits after the first `length` tokens of each sequence [B, S]."""
        left, above = (self._token(sequences, length - back) for back in (1, self.stride))
        return self.table[left * (self.vocab_size + 1) + above]

    def _token(self, sequences: Tensor, position: Tensor) -> Tensor:
        token = sequences.gather(1, position.clamp(min=0)[:, None])[:, 0] + 1
        return torch.where(position >= 0, token, 0)

    def next_logits(self, prefix: list[int]) -> list[float]:
        """The same, for a list of tokens."""
        sequence = torch.tensor([prefix + [0] * (len(self.forced) - len(prefix))])
        return self.logits(sequence, torch.tensor([len(prefix)]))[0].tolist()


def run(
    model: TableModel,
    decoder: Decoder,
    seeds: list[int],
    batch_size: int,
    dtype: torch.dtype = torch.float32,
    step: Callable[[Decoder, State, Tensor], State] = decode_step,
) -> tuple[Tensor, Tensor]:
    """Decode one image a seed through `batch_size` rows, refilled as they end; returns tokens
    [images, S] and NFE [images].
    """
    S = model.layout.length
    state = decoder.idle_state(batch_size, dtype, torch.device("cpu"))
    waiting = list(enumerate(seeds))
    occupied: list[int | None] = [None] * batch_size
    images, nfe = (
        torch.zeros(len(seeds), S, dtype=torch.int64),
        torch.zeros(len(seeds), dtype=torch.int64),
    )
    while waiting or any(image is not None for image in occupied):
        done = (state.n_B == S).tolist()
        for row in range(batch_size):
            if done[row] and occupied[row] is not None:
                images[occupied[row]], nfe[occupied[row]] = (
                    state.tokens_BS[row, :S],
                    state.nfe_B[row],
                )
                occupied[row] = None
        rows = [row for row in range(batch_size) if occupied[row] is None][: len(waiting)]
        if rows:
            jobs = [waiting.pop(0) for _ in rows]
            first = model.logits(
                torch.zeros(len(rows), S, dtype=torch.int64),
                torch.zeros(len(rows), dtype=torch.int64),
            )
            admit(decoder, state, rows, first.to(dtype), rng.keys([seed for _, seed in jobs]))
            for row, (image, _) in zip(rows, jobs, strict=True):
                occupied[row] = image
        logits = model.window_logits(state, decoder.window).to(dtype)
        state = step(decoder, state, logits)
    return images, nfe


def p_value(model: TableModel, decoder: Decoder, n: int, seed: int, step=decode_step) -> float:
    """Chi-square p-value of n images, sampled at once with one row each, against the model's exact
    joint distribution.
    """
    images, _ = run(model, decoder, list(range(seed * n, (seed + 1) * n)), n, step=step)
    return p_of(model, images, model.joint(decoder.sampling))


def p_of(model: TableModel, images: Tensor, joint: tuple[Tensor, Tensor]) -> float:
    """Chi-square p-value of images [n, S] against the exact distribution `joint`."""
    n, (every, probability) = len(images), joint
    place = model.vocab_size ** torch.arange(images.shape[1])
    counts = torch.bincount((images * place).sum(-1), minlength=model.vocab_size ** images.shape[1])
    expected = torch.zeros(len(counts), dtype=torch.float64)
    expected[(every * place).sum(-1)] = probability * n
    assert counts[expected == 0].sum() == 0, "sampled an image of probability zero"
    rare = expected < 5  # pooled, so that the chi-square approximation holds
    seen = torch.cat([counts[~rare], counts[rare].sum()[None]])
    wanted = torch.cat([expected[~rare], expected[rare].sum()[None]])
    if wanted[-1] == 0:
        seen, wanted = seen[:-1], wanted[:-1]
    return float(chisquare(seen.numpy(), (wanted / wanted.sum() * n).numpy()).pvalue)


SMALL = TableModel(vocab_size=3, forced=[False, False, True, False, False, True, False], stride=3)
# The same with a token more, which top-k leaves out: so its distributions can be sparse.
WIDE = replace(SMALL, vocab_size=4)
TOP_3, SPARSE = SamplingConfig(temperature=0.9, top_k=3), Sparse(vocab_size=4, n_support=3)
DRAFTERS = ("independent", "coupled", "gumbel")
INITIALIZATIONS = ("uniform", "above", "left", "repeat")
PREDICTIONS = ("none", "published", "momentum", "adaptive")
COMBINATIONS = list(itertools.product(DRAFTERS, INITIALIZATIONS, PREDICTIONS))
SAMPLING = SamplingConfig(temperature=0.9)
RELAXED = RelaxConfig(neighbours=1, delta=0.4, group=3, distance=0.5)


def decoder(
    drafter="independent",
    init="uniform",
    prediction="none",
    window=3,
    verifier="rejection",
    sampling=SAMPLING,
    model=SMALL,
    form=None,
):
    # One rise and a short history, so that the prediction acts within images this small.
    predict = PredictionConfig(
        kind=prediction, rises=1, history=2, beta=2.0, momentum=-0.5, top_k=0
    )
    config = DecoderConfig(
        drafter=drafter,
        verifier=verifier,
        init=init,
        window=window,
        prediction=predict,
        relax=RELAXED,
    )
    return make_decoder(config, sampling, model.layout, codebook, nearest, form)


def codebook():
    """Three tokens on a line."""
    return torch.tensor([[0.0], [0.3], [1.0]])
