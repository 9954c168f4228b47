"""A Llama- or Qwen-type decoder with a taming VQ decoder, in Hugging Face format, described by one `sjdvp.json`.

This is how the embedded model is stored, and how a user brings a model of their own. A folder holds

    config.json, model.safetensors   a transformers causal language model; image code k has vocabulary id `first_image_id` + k
    tokenizer.json                   a `tokenizers` file, without special tokens of its own
    vq_decoder.safetensors               the pixel decoder, in the key layout of transformers' JanusVQVAE
    sjdvp.json                       grid, ids, prompt limit, pixel decoder (format "sjdvp.model/1")

A prompt is [bos] text [boi]; the unconditional branch is [bos] [boi], with positions of its own.
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
from sjdvp.models.checkpoints import Part, load_strict, read_safetensors
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.layers import packed
from sjdvp.models.prompter import TokenPrompter
from sjdvp.models.sizes import requested, require
from sjdvp.models.tokenizer import open_tokenizer
from sjdvp.models.transformer import Transformer
from sjdvp.models.vq import TamingDecoder
from sjdvp.weights import locate

FORMAT = "sjdvp.model/1"
EMBEDDED = Path(__file__).parent / "emoji" / "model"


def open_embedded(config: ModelConfig, place: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open the model that ships with the package, or a folder in its format."""
    return _of_its_size(
        load(Path(config.path) if config.path else EMBEDDED, place, dtype, config.revision), config
    )


def open_folder(config: ModelConfig, place: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open a folder of the user's."""
    if config.path is None:
        raise WeightsError(
            "the generic model needs weights",
            "give --model, a folder or hub id that holds sjdvp.json",
        )
    weights = locate(config.path, config.revision)
    return _of_its_size(load(weights.path, place, dtype, weights.revision), config)


def _of_its_size(model: ImageModel, config: ModelConfig) -> ImageModel:
    """Return the model. Raises ConfigError when the settings ask for a image of another size."""
    unit = cast("TamingDecoder", model.vq_decoder).pixels_per_token
    size = model.layout.columns * unit, model.layout.rows * unit
    require(requested(config, size), [size], model.name)
    return model


def load(
    folder: Path, place: DeviceMap, dtype: torch.dtype, revision: str | None = None
) -> ImageModel:
    """Load a model folder. Raises WeightsError when a file is absent or does not fit."""
    about = _describe(folder)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    part = _tied if config.get_text_config().tie_word_embeddings else Part
    load_strict(
        model,
        read_safetensors(folder),
        f"the {config.model_type} decoder of {folder}",
        dtype,
        place,
        part,
    )
    vq_decoder = TamingDecoder.from_description(
        {k: v for k, v in about["vq_decoder"].items() if k != "family"}
    )
    load_strict(
        vq_decoder,
        read_safetensors(folder, "vq_decoder"),
        f"the pixel decoder of {folder}",
        torch.float32,
        DeviceMap(place.device),
    )
    first, last = about["first_image_id"], about["first_image_id"] + about["vocab_size"]
    embeds_TD, head = model.get_input_embeddings().weight.detach(), model.get_output_embeddings()
    for name, value in list(head.named_parameters()):  # of some models, a bias too
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
            embeds_TD,
            "{prompt}",
            bos,
            boi,
            lambda _: bos + boi,
            about["max_prompt_tokens"],
        ),
        token_embeds_VD=embeds_TD[first:last],
        row_end_D=None,
        head=packed(head),
        vq_decoder=vq_decoder.eval().requires_grad_(False),
        truncate_pixels=False,
    )


def _tied(name: str) -> Part:
    """Return where a weight comes from when the head is the table of embeddings: that is stored once."""
    return Part("model.embed_tokens.weight" if name == "lm_head.weight" else name)


def _describe(folder: Path) -> dict[str, Any]:
    path = folder / "sjdvp.json"
    if not path.is_file():
        raise WeightsError(
            f"{folder}: no sjdvp.json",
            "give --model a folder in the format of sjdvp/models/generic.py",
        )
    about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if about.get("format") != FORMAT:
        raise WeightsError(f"{path}: format {about.get('format')!r}, expected {FORMAT!r}")
    if about["vq_decoder"].get("family") != "taming":
        raise WeightsError(
            f"{path}: pixel decoder family {about['vq_decoder'].get('family')!r}, expected 'taming'"
        )
    return about
