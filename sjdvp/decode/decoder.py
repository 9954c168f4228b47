"""From the names in a configuration to the parts of a decoder."""

from collections.abc import Callable

from torch import Tensor

from sjdvp.config import DecoderConfig, SamplingConfig
from sjdvp.decode.draft import Coupled, Gumbel, Independent
from sjdvp.decode.prediction import make_predictor
from sjdvp.decode.relaxed import Gsd, Lantern
from sjdvp.decode.step import Decoder
from sjdvp.decode.verify import RejectionSampling, SameNoise
from sjdvp.interfaces import Drafter, ImageLayout, Verifier

DRAFTERS: dict[str, type[Drafter]] = {
    "independent": Independent,
    "coupled": Coupled,
    "gumbel": Gumbel,
}


def make_decoder(
    config: DecoderConfig,
    sampling: SamplingConfig,
    layout: ImageLayout,
    codebook: Callable[[], Tensor],
    neighbours: Callable[[Tensor, int], Tensor],
) -> Decoder:
    """Build the decoder that a configuration describes, for images of a given layout.

    `codebook` gives the code vectors [V, E], `neighbours` their nearest tokens [V, K]; only relaxed verifiers ask for them.
    """
    return Decoder(
        sampling=sampling,
        layout=layout,
        window=config.width,
        drafter=DRAFTERS[config.drafter](),
        verifier=_verifier(config, codebook, neighbours),
        prediction=make_predictor(config.prediction),
        init=config.init,
        rises=config.prediction.rises,
        top_k=config.prediction.top_k,
    )


def _verifier(
    config: DecoderConfig,
    codebook: Callable[[], Tensor],
    neighbours: Callable[[Tensor, int], Tensor],
) -> Verifier:
    if config.verifier == "lantern":
        return Lantern(config.relax, neighbours(codebook(), config.relax.neighbours))
    if config.verifier == "gsd":
        return Gsd(config.relax, codebook())
    return SameNoise() if config.verifier == "same-noise" else RejectionSampling()
