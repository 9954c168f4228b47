"""A model of your own: a transformers decoder and a taming VQ decoder, described by `sjdvp.json`.

The embedded model is stored so, too. A folder holds

    config.json, model.safetensors   a causal language model of transformers
    tokenizer.json                   a `tokenizers` file that adds no special tokens
    vq_decoder.safetensors           the VQ decoder, with the names of transformers' JanusVQVAE
    sjdvp.json                       layout, ids, prompt limit, VQ decoder (format "sjdvp.model/1")

Image token k has the vocabulary id `first_image_id` + k. A prompt is [bos] text [boi]; the
unconditional branch is [bos] [boi], with its own positions; a negative prompt is between them.
"""

import json
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from sjdvp.config import ModelConfig
from sjdvp.errors import WeightsError
from sjdvp.interfaces import ImageLayout
from sjdvp.models.base import ImageModel
from sjdvp.models.checkpoints import StoredWeight, load_strict, read_safetensors
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.image_size import requested, require
from sjdvp.models.layers import packed
from sjdvp.models.tokenizer import TokenPrompter, open_tokenizer
from sjdvp.models.transformer import Transformer
from sjdvp.models.vq import TamingDecoder
from sjdvp.weights import locate

FORMAT = "sjdvp.model/1"
EMBEDDED = Path(__file__).parent / "emoji" / "model"


def open_embedded(config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open the model that ships with the package, or a folder in its format."""
    return _of_its_size(
        load(Path(config.path) if config.path else EMBEDDED, device_map, dtype, config.revision),
        config,
    )


def open_folder(config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open a folder or hub id of the user."""
    if config.path is None:
        raise WeightsError(
            "the generic model has no weights of its own",
            "give --model a folder or hub id with an sjdvp.json",
        )
    weights = locate(config.path, config.revision)
    return _of_its_size(load(weights.path, device_map, dtype, weights.revision), config)


def _of_its_size(model: ImageModel, config: ModelConfig) -> ImageModel:
    """Return the model. Raises ConfigError when the settings ask for images of another size."""
    unit = cast("TamingDecoder", model.vq_decoder).pixels_per_token
    size = model.layout.columns * unit, model.layout.rows * unit
    require(requested(config, size), [size], model.name)
    return model


def load(
    folder: Path, device_map: DeviceMap, dtype: torch.dtype, revision: str | None = None
) -> ImageModel:
    """Load a model folder. Raises WeightsError when a file is missing or does not fit."""
    about = _describe(folder)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    source = _tied if config.get_text_config().tie_word_embeddings else StoredWeight
    load_strict(
        model,
        read_safetensors(folder),
        f"the {config.model_type} decoder of {folder}",
        dtype,
        device_map,
        source,
    )
    vq_decoder = TamingDecoder.from_description(
        {k: v for k, v in about["vq_decoder"].items() if k != "family"}
    )
    load_strict(
        vq_decoder,
        read_safetensors(folder, "vq_decoder"),
        f"the VQ decoder of {folder}",
        torch.float32,
        DeviceMap(device_map.device),
    )
    first, last = about["first_image_id"], about["first_image_id"] + about["vocab_size"]
    text_embeds, head = model.get_input_embeddings().weight.detach(), model.get_output_embeddings()
    for name, value in list(head.named_parameters()):  # some models have a bias
        setattr(head, name, nn.Parameter(value[first:last], requires_grad=False))
    bos, boi = [about["bos_id"]], [about["boi_id"]]
    tokenizer = open_tokenizer(folder / "tokenizer.json")
    return ImageModel(
        name=about["name"],
        revision=revision,
        layout=ImageLayout(about["grid"]["rows"], about["grid"]["columns"], about["vocab_size"]),
        max_prompt=about["max_prompt_tokens"],
        transformer=Transformer(model.model),
        prompt=TokenPrompter(
            tokenizer,
            text_embeds,
            "{prompt}",
            bos,
            boi,
            lambda _: bos + boi,
            about["max_prompt_tokens"],
            negative="{prompt}",
        ),
        token_embeds_VD=text_embeds[first:last],
        row_end_D=None,
        head=packed(head),
        vq_decoder=vq_decoder.eval().requires_grad_(False),
        truncate_pixels=False,
    )


def _tied(name: str) -> StoredWeight:
    """Return the source of a weight when head and embeddings are one stored table."""
    return StoredWeight("model.embed_tokens.weight" if name == "lm_head.weight" else name)


def _describe(folder: Path) -> dict[str, Any]:
    path = folder / "sjdvp.json"
    if not path.is_file():
        raise WeightsError(
            f"{folder}: no sjdvp.json",
            "give --model a model folder, see docs/own-model.md",
        )
    about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if about.get("format") != FORMAT:
        raise WeightsError(f"{path}: format {about.get('format')!r}, expected {FORMAT!r}")
    if about["vq_decoder"].get("family") != "taming":
        raise WeightsError(
            f"{path}: VQ decoder family {about['vq_decoder'].get('family')!r}, expected 'taming'"
        )
    return about
