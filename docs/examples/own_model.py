"""Bring a model of your own: write a folder that sjdvp draws with.

    python examples/own_model.py own-model
    sjdvp generate --profile own-model/profile.yaml --prompt "a red cat" --out images

Any Llama- or Qwen-type decoder of transformers will do, with a VQGAN decoder of the taming kind
(LlamaGen's, Janus-Pro's). The
weights written here are random, so the image is noise: put your trained ones in their place. A
prompt reaches the model as
[bos] text [boi]; the tokens of the image follow in raster order, code k as token CODE_OFFSET + k.
Guidance compares with
[bos] [boi].
"""

import json
import sys
from pathlib import Path

from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import JanusVQVAEConfig, Qwen2Config, Qwen2ForCausalLM

from sjdvp.models.vq import TamingDecoder

WORDS = ["<unk>", "<bos>", "<boi>", "a", "red", "blue", "cat", "dog"]
CODE_OFFSET, VOCAB_SIZE = len(WORDS), 64
ROWS = COLUMNS = 8

# Three levels: each code becomes 4 x 4 pixels. The fields are those of transformers'
# JanusVQVAEConfig.
PIXEL_DECODER = {
    "num_embeddings": VOCAB_SIZE,
    "embed_dim": 8,
    "latent_channels": 32,
    "base_channels": 32,
    "channel_multiplier": [1, 1, 2],
    "num_res_blocks": 1,
}

DESCRIPTION = {
    "format": "sjdvp.model/1",
    "name": "own-model",
    "grid": {"rows": ROWS, "columns": COLUMNS},
    "vocab_size": VOCAB_SIZE,
    "first_image_id": CODE_OFFSET,
    "bos_id": WORDS.index("<bos>"),
    "boi_id": WORDS.index("<boi>"),
    "max_prompt_tokens": 32,
    "vq_decoder": {"family": "taming", **PIXEL_DECODER},
}

PROFILE = """\
description: A model of my own.
model:
  backbone: generic
  path: {folder}
  licence: mine
sampling:
  cfg_scale: 2.0
  top_k: 32
decoder:
  window: 16
"""


def main(folder: Path) -> None:
    """Write every file that a model folder needs, and a profile beside them."""
    config = Qwen2Config(
        vocab_size=CODE_OFFSET + VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)  # config.json, model.safetensors
    tokenizer = Tokenizer(
        WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(
        TamingDecoder(JanusVQVAEConfig(**PIXEL_DECODER)).state_dict(),
        folder / "vq_decoder.safetensors",
    )
    (folder / "sjdvp.json").write_text(json.dumps(DESCRIPTION, indent=2), encoding="utf-8")
    (folder / "profile.yaml").write_text(PROFILE.format(folder=folder.resolve()), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
