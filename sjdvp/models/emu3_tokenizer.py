"""The tokenizer of Emu3 and Emu3.5, as a tokenizer.json or in the original format.

The original is a tiktoken file of byte pairs and a list of vision tokens. Source: baaivision/Emu3,
mllm/tokenization_emu3.py; Emu3.5 has the same, with more vision tokens.
"""

import base64
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from sjdvp.errors import WeightsError
from sjdvp.models.tokenizer import open_tokenizer

FILES = ("tokenizer.json", "emu3.tiktoken")
VISION_TOKENS = "emu3_vision_tokens.txt"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]


def open_emu3_tokenizer(path: Path) -> Tokenizer:
    """Open one of FILES; a tiktoken file needs VISION_TOKENS beside it.

    Raises WeightsError when a file is missing or cannot be read.
    """
    if path.suffix != ".tiktoken":
        return open_tokenizer(path)
    listed = path.with_name(VISION_TOKENS)
    if not listed.is_file():
        raise WeightsError(f"{path.parent}: no {VISION_TOKENS} beside {path.name}")
    vision = [
        name for line in listed.read_text(encoding="utf-8").splitlines() if (name := line.strip())
    ]
    ranks = _read_ranks(path)
    names = [*_SPECIAL, *vision]
    vocabulary = ranks | {name: len(ranks) + index for index, name in enumerate(names)}
    # tiktoken joins any two neighbours that are a token together, the lowest rank first.
    pairs = ((token[:cut], token[cut:]) for token in ranks for cut in range(1, len(token)))
    merges = [(left, right) for left, right in pairs if left in ranks and right in ranks]
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=True))
    tokenizer.normalizer = NFC()
    words = Split(Regex(_WORDS), "isolated")
    tokenizer.pre_tokenizer = Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])
    # Prompts hold no image tokens, and searching a text for 131,072 names is slow.
    texts = [name for name in names if not name.startswith("<|visual token ")]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in texts])
    return tokenizer


def _read_ranks(path: Path) -> dict[str, int]:
    """Return the byte pairs of a tiktoken file, a letter for each byte, in order of ids."""
    try:
        lines = [line.split() for line in path.read_bytes().splitlines() if line]
        ranked = sorted(
            (int(rank), base64.b64decode(token, validate=True)) for token, rank in lines
        )
    except ValueError as error:
        raise WeightsError(f"{path}: not a tiktoken file ({error})", "download it again") from error
    if [rank for rank, _ in ranked] != list(range(len(ranked))):
        raise WeightsError(f"{path}: its ranks are not in one run from 0", "download it again")
    return {"".join(_LETTERS[byte] for byte in token): rank for rank, token in ranked}


def _letters() -> dict[int, str]:
    """Return the printable letter of each byte in byte-level vocabularies."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {
        byte: chr(256 + index) for index, byte in enumerate(unseen)
    }


_LETTERS = _letters()
