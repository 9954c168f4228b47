"""How LlamaGen's captions were cleaned for training, and so how its prompts are read; made for captions of images on the web.

What is in a plain sentence stays, in lower case. Addresses, file names, long numbers, CJK signs and brackets go; a `2x2` goes too.
The rules are those of FoundationVision/LlamaGen, language/t5.py (`clean_caption`, which it applies twice), in their order: each is
a pattern and what takes its place.
"""

import html
import re
import warnings
from collections.abc import Callable
from urllib.parse import unquote_plus

from sjdvp.errors import ConfigError

_SUFFIXES = "(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)"
_SITE = r"[A-Za-z0-9.-]+\.(?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)"
_ADDRESS = r"\b(?:{}:(?:/{{1,3}}|[A-Za-z0-9%])|" + _SITE + ")"
_DASHES = "\\-\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0\ufe31\ufe32\ufe58\ufe63\uff0d"

_ADDRESSES = (
    ("<person>", "person"),
    (_ADDRESS.format("https?"), ""),
    (_ADDRESS.format("www"), ""),
)
_SIGNS = (
    (r"@\w+", ""),  # names of users
    ("[\u31c0-\u9fff]+", ""),  # CJK
    (f"[{_DASHES}]+", "-"),
    ("[`´«»“”¨]", '"'),
    ("[‘’]", "'"),
    ("&quot;?|&amp", ""),
    (r"\d{1,3}(?:\.\d{1,3}){3}", " "),  # addresses of machines
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),  # a line break written as two letters
    (r"#(?:\d{1,3}|\d{5,})\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.{_SUFFIXES}", ""),
    ("[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
    (r"\s+\.\s+", " "),
)
_WORDS = (
    (r"\b[A-Za-z]{1,3}\d{3,15}\b", ""),  # the numbers of wares
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


def plain(text: str) -> str:
    """Return a caption in lower case without outer spaces: the official code with `use_text_preprocessing` off."""
    return text.lower().strip()


def cleaner() -> Callable[[str], str]:
    """Return what cleans a caption. Raises ConfigError when the packages it needs are not installed."""
    try:
        from bs4 import BeautifulSoup, MarkupResemblesLocatorWarning
        from ftfy import fix_text
    except ImportError as error:
        raise ConfigError(
            f"LlamaGen cleans captions with ftfy and beautifulsoup4, and {error.name} is not installed",
            'pip install "sjdvp[t5]", or read prompts as they are: --set model.clean_captions=false',
            "model.clean_captions",
        ) from error

    warnings.simplefilter(
        "ignore", MarkupResemblesLocatorWarning
    )  # a caption may be no more than a file name

    def once(text: str) -> str:
        text = _apply(_ADDRESSES, unquote_plus(text).strip().lower())
        text = _apply(_SIGNS, BeautifulSoup(text, "html.parser").text)
        if len(re.findall("[-_]", text)) > 3:  # this-is-a-file-name
            text = re.sub("[-_]", " ", text)
        return _apply(_WORDS, html.unescape(html.unescape(fix_text(text))).strip()).strip()

    return lambda text: once(once(text))


def _apply(rules: tuple[tuple[str, str], ...], text: str) -> str:
    for pattern, instead in rules:
        text = re.sub(pattern, instead, text)
    return text
