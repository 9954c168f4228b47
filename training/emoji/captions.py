"""Words: which (concept, colour) pairs are trained, how captions are phrased, the tokenizer.

Knows nothing about images. All randomness comes from the generator that is passed in.
"""

from __future__ import annotations

import numpy as np
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from training.emoji.data import COLOURS

SPECIALS = ("[PAD]", "[UNK]", "[BOS]", "[BOI]")
PAD, UNK, BOS, BOI = range(4)
HELD_OUT_SHARE = 0.1
TEXT_MULTIPLE = 64
POSITION_SHARE = 0.15
LEADS = (
    "a photo of", "a picture of", "an emoji of", "a drawing of", "an illustration of",
    "a painting of", "an image of", "a close up of", "a cute", "a small", "a big", "one",
    "the", "my",
)  # fmt: skip
TAILS = (
    ", highly detailed", ", oil painting", ", digital art", ", 4k", ", simple", ", flat design",
    "!", ".", ", studio light", ", in the style of a sticker", ", watercolor",
    ", vector art", ", on a sunny day",
)  # fmt: skip
FILLERS = (
    "in",
    "with",
    "wearing",
    "next to",
    "and",
    "holding",
    "under",
    "very",
    "for",
    "at night",
    "made of",
)
UNKNOWN = "zzzunknownzzz"


def held_out_pairs(n_concepts: int, seed: int = 0) -> set[tuple[int, int]]:
    """One colour of nine for nine tenths of the concepts: 10 % of all pairs, spread evenly."""
    rng = np.random.default_rng(seed)
    n_held = round(HELD_OUT_SHARE * n_concepts * len(COLOURS))
    chosen = rng.permutation(n_concepts)[:n_held]
    colours = rng.permutation(np.arange(n_held) % len(COLOURS))
    return {(int(c), int(k)) for c, k in zip(chosen, colours, strict=True)}


def article(name: str) -> str:
    """Return ``a`` or ``an`` for a name."""
    return "an" if name[0] in "aeiou" else "a"


def caption(name: str, colour: str, positions: list[str], rng: np.random.Generator) -> str:
    """One caption; six tenths are plain, the rest carry fillers and words the model must ignore.

    Some name the object's position, by one of the phrases in ``positions``.
    """
    phrase = name if rng.random() < 0.5 else f"{article(name)} {name}"
    plain = rng.random() < 0.6
    if not plain and rng.random() < 0.5:
        phrase = f"{LEADS[rng.integers(len(LEADS))]} {phrase}"
    if not plain and rng.random() < 0.5:
        phrase = f"{phrase} {_distraction(rng)}"
    if rng.random() < POSITION_SHARE:
        phrase = f"{phrase} {positions[rng.integers(len(positions))]}"
    phrase = _with_background(phrase, colour, rng)
    if not plain and rng.random() < 0.5:
        phrase += TAILS[rng.integers(len(TAILS))]
    return phrase


def _with_background(phrase: str, colour: str, rng: np.random.Generator) -> str:
    """Say the background; on white it may stay unsaid."""
    if colour == "white" and rng.random() < 0.4:
        return phrase
    form = rng.random()
    if form < 0.75:
        return f"{phrase} on {article(colour)} {colour} background"
    if form < 0.85:
        return f"{phrase}, {colour} background"
    if form < 0.95:
        return f"{phrase} on {colour}"
    return f"{colour} background, {phrase}"


def _distraction(rng: np.random.Generator) -> str:
    """Make up a filler word and one to four words outside the vocabulary."""
    return " ".join([FILLERS[rng.integers(len(FILLERS))], *[UNKNOWN] * rng.integers(1, 5)])


def build_tokenizer(names: list[str]) -> Tokenizer:
    """Build a lower-casing word-level tokenizer over every word a caption can hold."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace("’", "'")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True)
    texts = [*names, *COLOURS, *LEADS, *TAILS, *FILLERS]
    texts += ["at the top bottom on left right in middle", "a an background and with - ' . , ! ?"]
    words = {word for text in texts for word in _words(tokenizer, text)}
    vocabulary = [*SPECIALS, *sorted(words)]
    missing = -len(vocabulary) % TEXT_MULTIPLE
    vocabulary += [f"[RESERVED{i}]" for i in range(missing)]
    tokenizer.model = models.WordLevel(
        {word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"
    )
    return tokenizer


def _words(tokenizer: Tokenizer, text: str) -> list[str]:
    """List the pieces the tokenizer would look up."""
    assert tokenizer.normalizer is not None and tokenizer.pre_tokenizer is not None
    return [
        piece
        for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(
            tokenizer.normalizer.normalize_str(text)
        )
    ]
