"""Memory while loading a checkpoint of full shape, in each format of its weights."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig

from benchmarks.timing import print_head, print_row
from sjdvp.engine.loading import load_model, plan_loading
from sjdvp.models.janus import _ORIGINAL, _SPECIAL, JanusNetwork
from sjdvp.models.random_weights import _VQ_DECODERS
from sjdvp.models.shapes import shape_of
from sjdvp.models.vq.taming import LLAMAGEN
from sjdvp.profiles import resolve

PROFILE = "janus-pro-1b"
FORMATS = ("not quantized", "int8", "fp8", "int4", "nf4")
SHARD = 2**29  # bytes
CODE_SIZE = 8  # of Janus' codebook vectors


def loading(options):
    """Write a random checkpoint in the original format, and open it once in each format."""
    with tempfile.TemporaryDirectory() as folder:
        largest = write_janus(Path(folder), shape_of(PROFILE))
        print_head(
            f"Loading {PROFILE} from files of at most {largest / 1e9:.2f} GB",
            *("weights", "model GB", "`doctor` GB", "`profiles` GB", "peak GB", "peak - model GB"),
        )
        for name in FORMATS:
            print_row(name, *measured(folder, name))


def measured(folder, name):
    """Open the checkpoint in a fresh process; return decimal gigabytes, computed and measured."""
    command = [sys.executable, "-m", "benchmarks.loading", folder, name]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(out)
    kind = None if name == FORMATS[0] else name
    profiles = shape_of(PROFILE).weight_bytes(kind)
    sizes = (found["model"], found["doctor"], profiles, found["peak"])
    return [f"{size / 1e9:.3f}" for size in (*sizes, found["peak"] - found["model"])]


def open_once(folder, name):
    """Load the model as a run does; return its bytes, those of the plan, and the peak."""
    settings = {"model.path": folder, "model.dtype": "bf16", "run.device": "cpu"}
    if name != FORMATS[0]:
        settings["model.quantize"] = name
    config = resolve(PROFILE, settings).config
    planned = plan_loading(config)[1].weights  # imports all that loading needs
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    before = peak()
    model = load_model(config)
    return {"model": model.n_bytes, "doctor": planned, "peak": peak() - before}


def peak():
    """Return the largest resident memory of this process so far."""
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def write_janus(folder, shape):
    """Write a checkpoint of that shape in the original format; return the largest file's bytes."""
    language = {
        "vocab_size": shape.n_ids,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
    }
    about = {"model_type": "multi_modality", "language_config": language}
    (folder / "config.json").write_text(json.dumps(about))
    write_tokenizer(folder / "tokenizer.json")
    with torch.device("meta"):
        network = JanusNetwork(LlamaConfig(**language), shape.vocab_size, CODE_SIZE)
        vq_decoder = _VQ_DECODERS["llamagen"]()
    tensors = {stored_name(name): weight for name, weight in network.state_dict().items()}
    tensors["language_model.lm_head.weight"] = network.decoder.embed_tokens.weight  # not needed
    n_levels = len(vq_decoder.decoder.up)
    for name, weight in vq_decoder.state_dict().items():
        tensors[f"gen_vision_model.{LLAMAGEN.stored_name(name, n_levels)}"] = weight
    return write_shards(folder, tensors)


def stored_name(name):
    ours = next(ours for ours in _ORIGINAL if name.startswith(ours))
    return name.replace(ours, _ORIGINAL[ours], 1)


def write_shards(folder, tensors):
    """Write random weights in bfloat16, in files of about SHARD bytes, and their index."""
    torch.manual_seed(0)
    home, shard, sizes = {}, {}, []
    for index, (name, like) in enumerate(tensors.items(), 1):
        shard[name] = torch.randn(like.shape, dtype=torch.bfloat16) * 0.02
        size = sum(weight.nbytes for weight in shard.values())
        if size >= SHARD or index == len(tensors):
            file = f"model-{len(sizes) + 1:05d}.safetensors"
            save_file(shard, folder / file)
            home |= dict.fromkeys(shard, file)
            sizes.append(size)
            shard = {}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": home}))
    return max(sizes)


def write_tokenizer(path):
    letters = {character: index for index, character in enumerate(map(chr, range(32, 127)))}
    tokenizer = Tokenizer(WordLevel({**_SPECIAL, **letters}, unk_token=" "))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.save(str(path))


if __name__ == "__main__":
    print(json.dumps(open_once(*sys.argv[1:])))
