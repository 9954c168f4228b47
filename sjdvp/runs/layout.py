"""The names of things in a run folder."""

from pathlib import Path

from sjdvp.runs.sharding import Shard

RUN = "run.json"
PROMPTS = "prompts.jsonl"
IMAGES = "images"


def image_file(index: int, sample: int, images_per_prompt: int) -> str:
    """Return the name of a image relative to the run folder: images/000000.png, or images/000000_01.png among several."""
    suffix = f"_{sample:02d}" if images_per_prompt > 1 else ""
    return f"{IMAGES}/{index:06d}{suffix}.png"


def log_path(root: Path, shard: Shard) -> Path:
    """Return where the log of a shard lies."""
    return root / f"log.shard-{shard.label}.jsonl"


def log_paths(root: Path) -> list[Path]:
    """Return every log in a run folder, whatever shard counts they were written with."""
    return sorted(root.glob("log.shard-*-of-*.jsonl"))
