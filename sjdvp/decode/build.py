"""From the names in a configuration to the parts of a decoder."""

from sjdvp.config import DecoderConfig, SamplingConfig
from sjdvp.decode.drafters import Coupled, Gumbel, Independent
from sjdvp.decode.prior import make_prior
from sjdvp.decode.step import Decoder
from sjdvp.decode.verifiers import Exact, SameNoise
from sjdvp.decode.window import Layout
from sjdvp.interfaces import Drafter, Verifier

DRAFTERS: dict[str, type[Drafter]] = {"independent": Independent, "coupled": Coupled, "gumbel": Gumbel}
VERIFIERS: dict[str, type[Verifier]] = {"exact": Exact, "same-noise": SameNoise}


def make_decoder(config: DecoderConfig, sampling: SamplingConfig, layout: Layout) -> Decoder:
    """Build the decoder that a configuration describes, for images of a given layout."""
    return Decoder(
        sampling=sampling,
        layout=layout,
        window=config.window,
        drafter=DRAFTERS[config.drafter](),
        verifier=VERIFIERS[config.verifier](),
        prior=make_prior(config.prior),
        fresh=config.fresh,
        rises=config.prior.rises,
        top_k=config.prior.top_k,
    )
