"""A decoder: the rules that a configuration names, put together."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sjdvp.config import LOSSLESS, DecoderConfig, PredictionConfig, SamplingConfig
from sjdvp.decode.distributions import Dense, Form, Sparse
from sjdvp.decode.draft import INITIALIZATIONS, Initialization, above, make_drafter
from sjdvp.decode.prediction import n_compared, n_history, n_top
from sjdvp.decode.state import State
from sjdvp.decode.verify import make_verifier
from sjdvp.interfaces import Drafter, ImageLayout, Verifier
from sjdvp.sampling import n_support

_SPARSE_PAYS = 16  # times the support: a vocabulary from which on sparse is faster, as measured


@dataclass(frozen=True, slots=True)
class Decoder:
    """The rules of one decoder, and how logits become distributions."""

    sampling: SamplingConfig
    layout: ImageLayout
    window: int
    drafter: Drafter
    verifier: Verifier
    prediction: PredictionConfig
    initialization: Initialization
    form: Form  # how distributions are stored

    def idle_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> State:
        """Allocate a state of idle slots; probabilities are stored in `dtype`."""
        Y, W, S = self.form.width, self.window, self.layout.length
        L, K = n_history(self.prediction), n_compared(self.prediction)
        T = n_top(self.prediction, self.form.n_tokens) if K else 0
        n_recent = self.layout.n_cells if self.initialization is above else 0

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(batch_size, *shape, dtype=dtype, device=device)

        return State(
            key_B=zeros(),
            position_key_BS=zeros(S + 2 * W),
            n_B=zeros() + S,
            nfe_B=zeros(),
            tokens_BS=zeros(S + W),
            accept_map_BS=zeros(S + W, dtype=torch.bool),
            draft_BW=zeros(W),
            draft_probs_BWY=zeros(W, Y, dtype=dtype),
            # A view, as each step leaves it: torch.compile distinguishes strides.
            history_BWLY=zeros(W, L + (L > 0), Y, dtype=dtype)[:, :, :L],
            age_BW=zeros(W),
            top_BWT=zeros(W, T),
            predicted_BKWT=zeros(K, W, T, dtype=dtype),
            error_BK=zeros(K, dtype=dtype),
            recent_BAY=zeros(n_recent, Y, dtype=dtype),
            bad_B=zeros(dtype=torch.bool),
        )


def make_decoder(
    config: DecoderConfig,
    sampling: SamplingConfig,
    layout: ImageLayout,
    codebook: Callable[[], Tensor],
    neighbours: Callable[[Tensor, int], Tensor],
    form: Form | None = None,
) -> Decoder:
    """Build the decoder that a configuration describes, for images of a given layout.

    `codebook` returns the codebook vectors [V, E], `neighbours` the nearest tokens of each token
    [V, M]; they are called for relaxed verifiers only. Without a `form`, it is the one that pays.
    """
    form = form or _form_that_pays(config, sampling, layout.vocab_size)
    return Decoder(
        sampling=sampling,
        layout=layout,
        window=config.width,
        drafter=make_drafter(config, form),
        verifier=make_verifier(config, form, codebook, neighbours),
        prediction=config.prediction,
        initialization=INITIALIZATIONS[config.init],
        form=form,
    )


def _form_that_pays(config: DecoderConfig, sampling: SamplingConfig, vocab_size: int) -> Form:
    """Return the form that takes less time; a relaxed verifier may ask for any token."""
    support = n_support(sampling, vocab_size)
    samples = sampling.temperature > 0  # a greedy distribution is one token, whatever top-k says
    if LOSSLESS[config.verifier] and samples and vocab_size >= _SPARSE_PAYS * support:
        return Sparse(vocab_size, support)
    # The first distribution of a position may be uniform, wider than the support. A draft of the
    # verifier same-noise may come from any of its tokens; every other verifier needs all of them.
    return Dense(vocab_size, support if config.verifier == "same-noise" else vocab_size)
