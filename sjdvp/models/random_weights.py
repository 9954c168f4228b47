"""Models of the published shapes with random weights, to measure speed without the weights.

The transformer is a Llama with the model's depth, widths and heads; vocabulary and layout are the
model's. Norms of queries and keys and biases are left out; text is not measured, nor pixels. On the
meta device the model has its VQ decoder, whose memory can be counted.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Emu3VQVAEConfig, JanusVQVAEConfig, LlamaConfig, LlamaModel

from sjdvp.config import RunConfig
from sjdvp.interfaces import EncodedPrompt, ImageLayout, PromptBranch
from sjdvp.models.base import ImageModel
from sjdvp.models.image_size import requested
from sjdvp.models.layers import packed
from sjdvp.models.quantize import with_quantized_layers
from sjdvp.models.shapes import ModelShape
from sjdvp.models.transformer import Transformer
from sjdvp.models.vq import MovqDecoder, TamingDecoder

N_PROMPT = 32  # tokens of every prompt


def _taming(n_tokens: int, size: int, *, chameleon: bool = False) -> nn.Module:
    config = JanusVQVAEConfig(
        num_embeddings=n_tokens,
        embed_dim=size,
        latent_channels=256,
        base_channels=128,
        channel_multiplier=[1, 1, 2, 2, 4],
        num_res_blocks=2,
    )
    return TamingDecoder(config, coarsest_attention=not chameleon, normalised=not chameleon)


def _movq(n_tokens: int, *, video: bool) -> nn.Module:
    config = Emu3VQVAEConfig(
        codebook_size=n_tokens,
        embed_dim=4,
        latent_channels=4,
        base_channels=256,
        channel_multiplier=[1, 2, 2, 4],
        num_res_blocks=2,
        attn_resolutions=[3],
        hidden_size=1024,
        num_attention_heads=1,
        temporal_downsample_factor=4,
    )
    config._attn_implementation = "sdpa"
    return MovqDecoder(config, video=video)


_VQ_DECODERS = {
    "chameleon": partial(_taming, 8192, 256, chameleon=True),
    "llamagen": partial(_taming, 16384, 8),
    "movqgan": partial(_movq, 16384, video=False),
    "emu3": partial(_movq, 32768, video=True),
}


def tiny(shape: ModelShape) -> ModelShape:
    """Return a small shape with the layout, vocabulary and prompt of `shape`, for trial runs."""
    n_kv_heads = max(1, 4 * shape.n_kv_heads // shape.n_heads)
    return replace(
        shape,
        n_layers=2,
        hidden=64,
        feed_forward=128,
        n_heads=4,
        n_kv_heads=n_kv_heads,
        head_size=0,
    )


def open_random_model(
    shape: ModelShape, config: RunConfig, device: torch.device, dtype: torch.dtype
) -> ImageModel:
    """Make a model of that shape for the images of `config`, with weights from a fixed seed."""
    model = config.model
    width, height = requested(model, (shape.side, shape.side))
    layout = ImageLayout(
        height // shape.pixels_per_token,
        width // shape.pixels_per_token,
        shape.vocab_size,
        shape.row_end,
    )
    on_meta = device.type == "meta"  # shapes without values
    settings = LlamaConfig(
        vocab_size=max(1, shape.n_ids) if on_meta else 1,  # the table is not used, only counted
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        head_dim=shape.size_of_head,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device("meta"):
        decoder: Any = LlamaModel(settings)
    decoder = decoder.to(dtype).to_empty(device=device)  # cast first: never float32 in memory
    noise = None if on_meta else torch.Generator(device).manual_seed(0)
    for name, weight in decoder.named_parameters():
        _fill(weight.data, noise, 1.0 if "norm" in name else 0.0)
    if model.quantize:
        with_quantized_layers(decoder, model.quantize, dtype)
    head = nn.Linear(
        shape.hidden, shape.vocab_size, bias=False, device=device, dtype=dtype
    ).requires_grad_(False)
    embeds_VD = _fill(torch.empty_like(head.weight), noise)
    _fill(head.weight.data, noise)
    n_prompt = min(N_PROMPT, shape.max_prompt)
    branch = PromptBranch(
        embeds_VD[:n_prompt], torch.ones(n_prompt, dtype=torch.bool, device=device)
    )
    return ImageModel(
        name=f"random weights in the shape of {config.profile}",
        revision=None,
        layout=layout,
        max_prompt=shape.max_prompt,
        transformer=Transformer(decoder),
        prompt=lambda text, negative=None: EncodedPrompt(branch, branch, n_prompt, truncated=False),
        token_embeds_VD=embeds_VD,
        row_end_D=embeds_VD[0] if shape.row_end else None,
        head=packed(head),
        vq_decoder=_vq_on_meta(_VQ_DECODERS[shape.vq])
        if on_meta and shape.vq
        else GreyDecoder(embeds_VD),
        truncate_pixels=False,
    )


def _fill(weight: Tensor, noise: torch.Generator | None, mean: float = 0.0) -> Tensor:
    return weight.normal_(mean, 0.02, generator=noise)


def _vq_on_meta(make: Callable[[], nn.Module]) -> Any:
    with torch.device("meta"):
        return make().eval().requires_grad_(False)


class GreyDecoder:
    """Decodes to grey images; its codebook is noise."""

    def __init__(self, vectors_VE: Tensor) -> None:
        self._vectors_VE = vectors_VE

    def codebook(self) -> Tensor:
        """Return one vector per token, [V, E]."""
        return self._vectors_VE

    def __call__(self, indices: Tensor, *, bands: bool = False) -> Tensor:
        """Return a grey image of one pixel per token, [B, 3, rows, columns]."""
        n_images, rows, columns = indices.shape
        return torch.zeros(n_images, 3, rows, columns, device=indices.device)
