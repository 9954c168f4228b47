"""A Llama- or Qwen-type decoder with a taming VQ decoder, in Hugging Face format, described by one `sjdvp.json`.

This is how the embedded model is stored, and how a user brings a model of their own. A folder holds

    config.json, model.safetensors   a transformers causal language model; image code k has vocabulary id `code_offset` + k
    tokenizer.json                   a `tokenizers` file, without special tokens of its own
    pixels.safetensors               the pixel decoder, in the key layout of transformers' JanusVQVAE
    sjdvp.json                       grid, ids, prompt limit, pixel decoder (format "sjdvp.model/1")
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from sjdvp.backbones.checkpoints import load_strict, read_safetensors
from sjdvp.backbones.grid import Grid
from sjdvp.backbones.pixels import TamingDecoder, to_uint8
from sjdvp.backbones.trunk import Trunk
from sjdvp.cache import RowCache
from sjdvp.config import ModelConfig
from sjdvp.errors import WeightsError
from sjdvp.interfaces import Prompt, PromptRow

FORMAT = "sjdvp.model/1"
EMBEDDED = Path(__file__).parent / "emoji" / "model"


@dataclass(frozen=True)
class GenericBackbone:
    """A prompt is [bos] text [boi]; the unconditional branch is [bos] [boi], with positions of its own."""

    name: str
    grid: Grid
    n_codes: int
    max_prompt: int
    revision: str | None
    bos_id: int
    boi_id: int
    tokenizer: Tokenizer
    trunk: Trunk
    text_embeds_TD: Tensor
    code_embeds_VD: Tensor
    head_VD: Tensor
    pixel_decoder: TamingDecoder

    @property
    def device(self) -> torch.device:
        """Where the trunk lives."""
        return self.trunk.device

    @property
    def dtype(self) -> torch.dtype:
        """What the trunk computes in."""
        return self.trunk.dtype

    def prompt(self, text: str) -> Prompt:
        """See `sjdvp.interfaces.Backbone`."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        limit = self.max_prompt - 2
        cond, uncond = [self.bos_id, *ids[:limit], self.boi_id], [self.bos_id, self.boi_id]
        return Prompt(self._row(cond), self._row(uncond), n_tokens=len(cond), truncated=len(ids) > limit)

    def _row(self, ids: list[int]) -> PromptRow:
        ids_P = torch.tensor(ids, device=self.device)
        return PromptRow(self.text_embeds_TD[ids_P], torch.ones_like(ids_P, dtype=torch.bool))

    def new_cache(self, n_rows: int, n_slots: int) -> RowCache:
        """See `sjdvp.interfaces.Backbone`."""
        return self.trunk.new_cache(n_rows, n_slots)

    def embed(self, codes_BW: Tensor, pos_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Backbone`; there are no forced positions."""
        return self.code_embeds_VD[codes_BW]

    def hidden(self, x_RWD: Tensor, slots_RW: Tensor, mask_R1WC: Tensor, cache: RowCache) -> Tensor:
        """See `sjdvp.interfaces.Backbone`."""
        return self.trunk(x_RWD, slots_RW, mask_R1WC, cache)

    def logits(self, h_RWD: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Backbone`."""
        return torch.nn.functional.linear(h_RWD, self.head_VD)

    def codebook(self) -> Tensor:
        """See `sjdvp.interfaces.Backbone`."""
        return self.pixel_decoder.codebook()

    @torch.inference_mode()
    def pixels(self, codes_N: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Backbone`."""
        return to_uint8(self.pixel_decoder(codes_N.view(1, self.grid.rows, self.grid.columns)), truncate=False)[0]


def open_embedded(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> GenericBackbone:
    """Open the model that ships with the package, or a folder in its format."""
    return load(Path(config.path) if config.path else EMBEDDED, device, dtype, config.revision)


def open_folder(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> GenericBackbone:
    """Open a folder of the user's."""
    if config.path is None:
        raise WeightsError("the generic backbone needs weights", "give --model FOLDER, a folder that holds sjdvp.json")
    return load(Path(config.path), device, dtype, config.revision)


def load(folder: Path, device: torch.device, dtype: torch.dtype, revision: str | None = None) -> GenericBackbone:
    """Load a model folder. Raises WeightsError when a file is absent or does not fit."""
    about = _describe(folder)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    load_strict(model, read_safetensors(folder), f"the {config.model_type} decoder of {folder}", dtype, device)
    pixel_decoder = TamingDecoder.from_description({k: v for k, v in about["pixel_decoder"].items() if k != "family"})
    load_strict(pixel_decoder, read_safetensors(folder, "pixels"), f"the pixel decoder of {folder}", torch.float32, device)
    grid = Grid(about["grid"]["rows"], about["grid"]["columns"])
    first, last = about["code_offset"], about["code_offset"] + about["n_codes"]
    embeds = model.get_input_embeddings().weight.detach()
    return GenericBackbone(
        name=about["name"],
        grid=grid,
        n_codes=about["n_codes"],
        max_prompt=about["max_prompt_tokens"],
        revision=revision,
        bos_id=about["bos_id"],
        boi_id=about["boi_id"],
        tokenizer=Tokenizer.from_file(str(folder / "tokenizer.json")),
        trunk=Trunk(model.model),
        text_embeds_TD=embeds,
        code_embeds_VD=embeds[first:last],
        head_VD=model.get_output_embeddings().weight.detach()[first:last],
        pixel_decoder=pixel_decoder.eval().requires_grad_(False),
    )


def _describe(folder: Path) -> dict[str, Any]:
    path = folder / "sjdvp.json"
    if not path.is_file():
        raise WeightsError(f"{folder}: no sjdvp.json", "give --model a folder in the format of sjdvp/backbones/generic.py")
    about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if about.get("format") != FORMAT:
        raise WeightsError(f"{path}: format {about.get('format')!r}, expected {FORMAT!r}")
    if about["pixel_decoder"].get("family") != "taming":
        raise WeightsError(f"{path}: pixel decoder family {about['pixel_decoder'].get('family')!r}, expected 'taming'")
    return about
