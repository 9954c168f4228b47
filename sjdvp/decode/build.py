"""From the names in a configuration to the parts of a decoder."""

from collections.abc import Callable

from torch import Tensor

from sjdvp.config import DecoderConfig, SamplingConfig
from sjdvp.decode.drafters import Coupled, Gumbel, Independent
from sjdvp.decode.prior import make_prior
from sjdvp.decode.relaxed import Grouped, Lantern
from sjdvp.decode.step import Decoder
from sjdvp.decode.verifiers import Exact, SameNoise
from sjdvp.decode.window import Layout
from sjdvp.interfaces import Drafter, Verifier

DRAFTERS: dict[str, type[Drafter]] = {"independent": Independent, "coupled": Coupled, "gumbel": Gumbel}


def make_decoder(
    config: DecoderConfig,
    sampling: SamplingConfig,
    layout: Layout,
    codebook: Callable[[], Tensor],
    neighbours: Callable[[Tensor, int], Tensor],
) -> Decoder:
    """Build the decoder that a configuration describes, for images of a given layout.

    `codebook` gives the code vectors [V, E], `neighbours` their nearest codes [V, K]; only relaxed verifiers ask for them.
    """
    return Decoder(
        sampling=sampling,
        layout=layout,
        window=config.width,
        drafter=DRAFTERS[config.drafter](),
        verifier=_verifier(config, codebook, neighbours),
        prior=make_prior(config.prior),
        fresh=config.fresh,
        rises=config.prior.rises,
        top_k=config.prior.top_k,
    )


def _verifier(config: DecoderConfig, codebook: Callable[[], Tensor], neighbours: Callable[[Tensor, int], Tensor]) -> Verifier:
    if config.verifier == "lantern":
        return Lantern(config.relax, neighbours(codebook(), config.relax.neighbours))
    if config.verifier == "gsd":
        return Grouped(config.relax, codebook())
    return SameNoise() if config.verifier == "same-noise" else Exact()
