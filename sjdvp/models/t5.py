"""LlamaGen's text encoder: captions cleaned as in its training, then features of a T5 encoder.

Sources: FoundationVision/LlamaGen, language/t5.py. The cleaning was made for captions of images on
the web: a plain sentence stays, in lower case; addresses, file names, long numbers, sizes like 2x2,
CJK characters and brackets go. Its rules (`clean_caption`, which is applied twice) are patterns and
their replacements, in the official order.
"""

import html
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import torch
from torch import Tensor, nn
from transformers import T5Config, T5EncoderModel

from sjdvp.errors import ConfigError, WeightsError
from sjdvp.models.checkpoints import read_json
from sjdvp.models.tokenizer import encode, open_tokenizer, shorten, special_ids

_SUFFIXES = "(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)"
_SITE = r"[A-Za-z0-9.-]+\.(?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)"
_ADDRESS = r"\b(?:{}:(?:/{{1,3}}|[A-Za-z0-9%])|" + _SITE + ")"
_DASHES = (
    "\\-\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40"
    "\u301c\u3030\u30a0\ufe31\ufe32\ufe58\ufe63\uff0d"
)

_ADDRESSES = (
    ("<person>", "person"),
    (_ADDRESS.format("https?"), ""),
    (_ADDRESS.format("www"), ""),
)
_SIGNS = (
    (r"@\w+", ""),  # user names
    ("[\u31c0-\u9fff]+", ""),  # CJK
    (f"[{_DASHES}]+", "-"),
    ("[`´«»“”¨]", '"'),
    ("[‘’]", "'"),
    ("&quot;?|&amp", ""),
    (r"\d{1,3}(?:\.\d{1,3}){3}", " "),  # IP addresses
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),  # a line break written as two characters
    (r"#(?:\d{1,3}|\d{5,})\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.{_SUFFIXES}", ""),
    ("[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
    (r"\s+\.\s+", " "),
)
_WORDS = (
    (r"\b[A-Za-z]{1,3}\d{3,15}\b", ""),  # product numbers
    (r"\b[A-Za-z]+\d+[A-Za-z]+\b", ""),
    (r"\b\d+[A-Za-z]+\d+\b", ""),
    (r"(?:worldwide\s+)?(?:free\s+)?shipping", ""),
    (r"(?:free\s)?download(?:\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b{_SUFFIXES}(?:\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[A-Za-z]+\d+[A-Za-z]+\d+[A-Za-z\d]*\b", " "),
    (r"\b\d+\.?\d*[xх×]\d+\.?\d*\b", ""),  # sizes; the second x is Cyrillic
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
    (r"^[\"']([\w\W]+)[\"']$", r"\1"),
    (r"^['_,\-:;]", ""),
    (r"['_,\-:+]$", ""),
    (r"^\.\S+$", ""),
)


def lower_case(text: str) -> str:
    """Return a caption in lower case, as the official code with `use_text_preprocessing` off."""
    return text.lower().strip()


def caption_cleaner() -> Callable[[str], str]:
    """Return the function that cleans a caption. Raises ConfigError when a package is missing."""
    try:
        from bs4 import BeautifulSoup, MarkupResemblesLocatorWarning
        from ftfy import fix_text
    except ImportError as error:
        raise ConfigError(
            f"cleaning captions needs ftfy and beautifulsoup4; {error.name} is not installed",
            "in the checkout of sjdvp: pip install '.[t5]'; "
            "or --set model.clean_captions=false to clean nothing",
            "model.clean_captions",
        ) from error

    # A caption may look like a file name.
    warnings.simplefilter("ignore", MarkupResemblesLocatorWarning)

    def once(text: str) -> str:
        text = _apply(_ADDRESSES, unquote_plus(text).strip().lower())
        text = _apply(_SIGNS, BeautifulSoup(text, "html.parser").text)
        if len(re.findall("[-_]", text)) > 3:  # this-is-a-file-name
            text = re.sub("[-_]", " ", text)
        return _apply(_WORDS, html.unescape(html.unescape(fix_text(text))).strip()).strip()

    return lambda text: once(once(text))


def _apply(rules: tuple[tuple[str, str], ...], text: str) -> str:
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    return text


class TextEncoder:
    """From a caption to the features of its tokens: at most `n_slots`, the end token included."""

    def __init__(
        self,
        folder: Path,
        clean: Callable[[str], str],
        n_slots: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        about = read_json(folder / "config.json")
        if about.get("model_type") != "t5":
            raise WeightsError(
                f"{folder} is a {about.get('model_type')} model, not T5",
                "model.text_encoder takes google/flan-t5-xl",
            )
        if not (folder / "tokenizer.json").is_file():
            raise WeightsError(
                f"{folder}: no tokenizer.json",
                "download it: hf download google/flan-t5-xl tokenizer.json",
            )
        self._device, self._model = (
            device,
            _open(folder, device, dtype).eval().requires_grad_(False),
        )
        self.n_bytes = sum(weight.nbytes for weight in self._model.parameters())
        self._tokenizer = open_tokenizer(folder / "tokenizer.json")
        self._end = special_ids(self._tokenizer, ["</s>"], {}, about["vocab_size"])
        self._clean, self._n_slots = clean, n_slots
        self.n_features: int = about["d_model"]

    @torch.inference_mode()
    def __call__(self, text: str) -> tuple[Tensor, bool]:
        """Return the features [N, F] of a caption, and whether it was truncated."""
        ids, truncated = shorten(encode(self._tokenizer, self._clean(text)), self._n_slots - 1)
        features: Tensor = self._model(
            torch.tensor([ids + self._end], device=self._device)
        ).last_hidden_state[0]
        return features, truncated


def _open(folder: Path, device: torch.device, dtype: torch.dtype) -> nn.Module:
    if device.type == "meta":
        with device:
            empty: Any = T5EncoderModel(T5Config.from_pretrained(folder, local_files_only=True))
        return empty.to(dtype)
    model: Any = T5EncoderModel.from_pretrained(folder, local_files_only=True, dtype=dtype)
    return model.to(device)
