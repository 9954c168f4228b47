"""VQ decoders in bands of image rows: the same image, with less memory."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import Emu3VQVAEConfig, JanusVQVAEConfig

from sjdvp.engine.memory import _LiveBytes
from sjdvp.models.vq import MovqDecoder, TamingDecoder

TOLERANCE = 1e-4  # of pixels in [-1, 1]: 1/78 of a level of 255
JANUS = {"embed_dim": 8, "latent_channels": 16, "num_embeddings": 64, "num_res_blocks": 2}
EMU3 = {
    "codebook_size": 64,
    "embed_dim": 4,
    "latent_channels": 4,
    "num_attention_heads": 1,
    "temporal_downsample_factor": 4,
}


def taming(channels: int = 32, levels: int = 3) -> TamingDecoder:
    config = JanusVQVAEConfig(
        **JANUS, base_channels=channels, channel_multiplier=[1, 1, 2, 2, 4][:levels]
    )
    return TamingDecoder(config)


def movq(channels: int = 32, levels: int = 3) -> MovqDecoder:
    config = Emu3VQVAEConfig(
        **EMU3,
        base_channels=channels,
        channel_multiplier=[1, 2, 2, 4][:levels],
        num_res_blocks=2,
        attn_resolutions=[levels - 1],
        hidden_size=channels * [1, 2, 2, 4][levels - 1],
    )
    config._attn_implementation = "sdpa"
    return MovqDecoder(config, video=True)


@torch.inference_mode()
@pytest.mark.parametrize("make", [taming, movq])
@pytest.mark.parametrize(("rows", "levels"), [(19, 3), (6, 4), (8, 2)])
def test_the_same_image(make: type, rows: int, levels: int) -> None:
    torch.manual_seed(0)
    decoder = make(levels=levels).eval()
    for name, weight in decoder.named_parameters():  # norms that do something
        weight.data.add_(torch.randn_like(weight) * (0.5 if "norm" in name else 0.0))
    codes = torch.randint(64, (1, rows, 5))
    whole, again = decoder(codes), decoder(codes)
    in_bands = decoder(codes, bands=True)
    scale = whole.abs().max()
    error = ((in_bands - whole).abs().max() / scale).item()
    print(f"{make.__name__}, {rows} rows, {levels} levels: largest error {error:.1e}")
    assert error < TOLERANCE
    assert torch.equal(decoder(codes), again)  # nothing is left behind in the norms
    assert in_bands.std() > 0.1 * scale


def peak(decoder: nn.Module, codes: Tensor, *, bands: bool) -> int:
    weights = dict(decoder.named_parameters())
    with torch.no_grad(), _LiveBytes() as live:
        functional_call(decoder, weights, (codes,), {"bands": bands})
    return live.most


@pytest.mark.process
@pytest.mark.parametrize("make", [taming, movq])
def test_memory_falls(make: type) -> None:
    with torch.device("meta"):
        decoder = make(channels=64, levels=4).eval()
        codes = torch.zeros(1, 96, 16, dtype=torch.int64)
    before, after = (peak(decoder, codes, bands=bands) for bands in (False, True))
    print(f"{make.__name__}: {before / 2**20:.0f} MiB whole, {after / 2**20:.0f} MiB in bands")
    assert after < 0.6 * before
