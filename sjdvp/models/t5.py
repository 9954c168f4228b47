"""The T5 text encoder that LlamaGen reads captions with. Source: FoundationVision/LlamaGen, language/t5.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import T5Config, T5EncoderModel

from sjdvp.errors import WeightsError
from sjdvp.models.checkpoints import read_json
from sjdvp.models.tokenizer import encode, open_tokenizer, shorten, special_ids


class TextEncoder:
    """From a caption, cleaned, to the features of its tokens, at most `kv_length` of them with the end token."""

    def __init__(
        self,
        folder: Path,
        clean: Callable[[str], str],
        kv_length: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        about = read_json(folder / "config.json")
        if about.get("model_type") != "t5":
            raise WeightsError(
                f"{folder}: a {about.get('model_type')} model, not T5",
                "model.text_encoder takes google/flan-t5-xl",
            )
        if not (folder / "tokenizer.json").is_file():
            raise WeightsError(
                f"{folder}: no tokenizer.json",
                "fetch it with: hf download google/flan-t5-xl tokenizer.json",
            )
        self._device, self._model = (
            device,
            _open(folder, device, dtype).eval().requires_grad_(False),
        )
        self.n_bytes = sum(weight.nbytes for weight in self._model.parameters())
        self._tokenizer = open_tokenizer(folder / "tokenizer.json")
        self._end = special_ids(self._tokenizer, ["</s>"], {}, about["vocab_size"])
        self._clean, self._n_slots = clean, kv_length
        self.n_features: int = about["d_model"]

    @torch.inference_mode()
    def __call__(self, text: str) -> tuple[Tensor, bool]:
        """Return the features [N, F] of a caption, and whether it was cut."""
        ids, truncated = shorten(encode(self._tokenizer, self._clean(text)), self._n_slots - 1)
        features: Tensor = self._model(
            torch.tensor([ids + self._end], device=self._device)
        ).last_hidden_state[0]
        return features, truncated


def _open(folder: Path, device: torch.device, dtype: torch.dtype) -> nn.Module:
    if device.type == "meta":  # nothing is to be read
        with device:
            empty: Any = T5EncoderModel(T5Config.from_pretrained(folder, local_files_only=True))
        return empty.to(dtype)
    model: Any = T5EncoderModel.from_pretrained(folder, local_files_only=True, dtype=dtype)
    return model.to(device)
