"""From the saved tokens of GLM-Image to images, with the pipeline of diffusers.

    sjdvp generate --profile glm-image --prompts prompts.txt -o run --save-tokens
    pip install '.[glm]'
    python docs/examples/glm_image_pixels.py run images

The pipeline loads the diffusion transformer, its VAE and the text encoder for the letters in an
image; the transformer that decoded the tokens is left out.
"""

import base64
import json
import sys
from pathlib import Path

import numpy as np
import torch

MODEL = "zai-org/GLM-Image"
PIXELS_PER_TOKEN = 32


def prior(tokens_N: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return the tokens as the pipeline takes them: each one four times, 16 pixels each."""
    grid = tokens_N.view(rows, columns)
    return grid.repeat_interleave(2, 0).repeat_interleave(2, 1).view(1, -1)


def read_rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def convert(run: Path, out: Path, pipeline, **settings) -> None:
    """Write an image for each row of the tokens files of a run; `settings` go to the pipeline."""
    size = json.loads((run / "run.json").read_text(encoding="utf-8"))["pixel_settings"]["model"]
    width, height = size["width"], size["height"]
    prompts = {row["index"]: row["prompt"] for row in read_rows(run / "prompts.jsonl")}
    out.mkdir(exist_ok=True)
    for file in sorted(run.glob("tokens.*.jsonl")):
        for row in read_rows(file):
            tokens = np.frombuffer(base64.b64decode(row["tokens"]), row["dtype"]).astype(np.int64)
            grid = height // PIXELS_PER_TOKEN, width // PIXELS_PER_TOKEN
            image = pipeline(
                prompt=prompts[row["index"]],
                prior_token_ids=prior(torch.from_numpy(tokens), *grid).to(pipeline.device),
                height=height,
                width=width,
                generator=torch.Generator().manual_seed(0),
                **settings,
            ).images[0]
            image.save(out / f"{row['index']:06d}_{row['sample']:02d}.png")


if __name__ == "__main__":
    from diffusers import GlmImagePipeline

    parts = {"vision_language_encoder": None, "processor": None}
    model = GlmImagePipeline.from_pretrained(MODEL, torch_dtype=torch.bfloat16, **parts)
    model.enable_model_cpu_offload()
    convert(Path(sys.argv[1]), Path(sys.argv[2]), model)
