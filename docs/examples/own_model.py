"""Bring a model of your own: write a model folder for sjdvp.

    python docs/examples/own_model.py own-model
    sjdvp generate --profile own-model/profile.yaml --prompt "a red cat" --out images

The transformer can be any Llama- or Qwen-type decoder of transformers, the VQ decoder any VQGAN
decoder of the taming kind (such as those of LlamaGen and Janus-Pro). The weights written here are
random, so the image is noise: replace them by yours. A prompt reaches the model as [bos] text
[boi]; the image tokens follow in raster order, and image token k has the id FIRST_IMAGE_ID + k. The
unconditional branch of guidance is [bos] [boi].
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
FIRST_IMAGE_ID, VOCAB_SIZE = len(WORDS), 64
ROWS = COLUMNS = 8

# Three levels: an image token becomes 4 x 4 pixels. The fields are those of JanusVQVAEConfig.
VQ_DECODER = {
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
    "first_image_id": FIRST_IMAGE_ID,
    "bos_id": WORDS.index("<bos>"),
    "boi_id": WORDS.index("<boi>"),
    "max_prompt_tokens": 32,
    "vq_decoder": {"family": "taming", **VQ_DECODER},
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
        vocab_size=FIRST_IMAGE_ID + VOCAB_SIZE,
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
        TamingDecoder(JanusVQVAEConfig(**VQ_DECODER)).state_dict(),
        folder / "vq_decoder.safetensors",
    )
    (folder / "sjdvp.json").write_text(json.dumps(DESCRIPTION, indent=2), encoding="utf-8")
    (folder / "profile.yaml").write_text(PROFILE.format(folder=folder.resolve()), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
