"""Loading: strict, lean, and clear about what is wrong."""

import json
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sjdvp.config import ModelConfig
from sjdvp.errors import ConfigError, SjdvpError, WeightsError
from sjdvp.models import open_model
from sjdvp.models.checkpoints import Checkpoint, load_strict, open_checkpoint
from sjdvp.models.device_map import DeviceMap
from sjdvp_cli.app import run
from tests.models.harness import CPU, PARITY
from tests.models.tiny import chameleon_tokenizer, emu3_tokenizer, text_encoder

VQ = PARITY / "llamagen_vq" / "vq_ds16_tiny.pt"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chameleon_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def lumina(path: Path, tokenizer: Path, **settings: object) -> ModelConfig:
    pixels = str(PARITY / "chameleon_vqgan" / "vqgan.ckpt")
    values = {
        "width": 64,
        "height": 64,
        "tokenizer": str(tokenizer),
        "vq_decoder": pixels,
        **settings,
    }
    return ModelConfig("lumina-mgpt", str(path), **values)


def c2i(path: Path, **settings: object) -> ModelConfig:
    return ModelConfig("llamagen-c2i", str(path), **{"vq_decoder": str(VQ), "heads": 4, **settings})


def refusal(model: ModelConfig, dtype: torch.dtype = torch.float32) -> str:
    with pytest.raises(SjdvpError) as caught:
        open_model(model, CPU, dtype)
    assert caught.value.exit_code == 2
    return f"{caught.value} ({caught.value.hint})"


def test_every_misfit_is_listed(tmp_path: Path) -> None:
    with torch.device("meta"):
        module = nn.ModuleDict({name: nn.Linear(2, 3) for name in "abcdefg"})
    tensors = {f"{name}.weight": torch.zeros(3, 2) for name in "bcdefg"} | {
        f"x{i}": torch.zeros(1) for i in range(8)
    }
    save_file(tensors | {"b.weight": torch.zeros(9, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError) as caught:
        load_strict(module, open_checkpoint(tmp_path), "a toy", torch.float32, DeviceMap(CPU))
    message = str(caught.value)
    assert "8 missing (a.bias, a.weight, b.bias, c.bias, d.bias, and 3 more)" in message
    assert "8 unexpected (x0, x1, x2, x3, x4, and 3 more)" in message
    assert "b.weight gives [9, 2] instead of [3, 2]" in message


@pytest.mark.parametrize("wrapper", ["module", "state_dict", None])
def test_wrappers_and_old_archives(wrapper: str | None, tmp_path: Path) -> None:
    weights = torch.load(PARITY / "llamagen_c2i" / "c2i_tiny_64.pt", weights_only=True)["model"]
    path = tmp_path / "c2i_tiny_64.pt"
    stored = {wrapper: weights, "args": Namespace(results_dir="runs")} if wrapper else weights
    torch.save(stored, path, _use_new_zipfile_serialization=wrapper is not None)
    assert open_model(c2i(path), CPU, torch.float32).layout.vocab_size == 96


def test_shards_and_dtype(tokenizer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    folder.mkdir()
    shutil.copy(PARITY / "lumina1_lm" / "config.json", folder)
    tensors = load_file(PARITY / "lumina1_lm" / "model.safetensors")
    home = {name: f"model-0000{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for shard in set(home.values()):
        save_file(
            {name: tensor for name, tensor in tensors.items() if home[name] == shard},
            folder / shard,
        )
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": home}))
    model = open_model(lumina(folder, tokenizer), CPU, torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert model.codebook().dtype == torch.float32
    (folder / "model-00001.safetensors").unlink()
    assert "no model-00001.safetensors" in refusal(lumina(folder, tokenizer))


@pytest.mark.process
def test_on_the_meta_device_everything_is_weighed_and_nothing_read(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = str(text_encoder(tmp_path / "t5"))
    t2i = ModelConfig(
        "llamagen-t2i",
        str(PARITY / "llamagen_t2i" / "t2i_tiny_64.pt"),
        None,
        str(VQ),
        encoder,
        heads=4,
    )
    for model in (
        lumina(PARITY / "lumina1_lm", tokenizer),
        c2i(PARITY / "llamagen_c2i" / "c2i_tiny_64.pt"),
        t2i,
    ):
        loaded = open_model(model, CPU, torch.bfloat16)
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "__getitem__", None)
            weighed = open_model(model, torch.device("meta"), torch.bfloat16)
        assert weighed.n_bytes == loaded.n_bytes > 2 * loaded.n_weights


def test_wrong_files_are_refused_with_the_reason(tokenizer: Path, tmp_path: Path) -> None:
    lora, words, half = tmp_path / "lora", tmp_path / "words", tmp_path / "half"
    for folder in (lora, words, half):
        folder.mkdir()
    (lora / "adapter_config.json").write_text("{}")
    shutil.copy(tokenizer, words / "tokenizer.json")
    assert "LoRA adapter" in refusal(lumina(lora, tokenizer))
    assert "holds a tokenizer, not a model" in refusal(lumina(words, tokenizer))
    assert "not Chameleon" in refusal(lumina(PARITY / "janus_hf", tokenizer))
    assert "no such file or folder" in refusal(lumina(tmp_path / "nothing", tokenizer))
    assert "is it the VQ decoder" in refusal(c2i(VQ, resolution=64))
    assert "text-conditional" in refusal(c2i(PARITY / "llamagen_t2i" / "t2i_tiny_64.pt"))
    (half / "c2i_tiny_64.pt").write_bytes(
        (PARITY / "llamagen_c2i" / "c2i_tiny_64.pt").read_bytes()[:5000]
    )
    assert "download it again" in refusal(c2i(half / "c2i_tiny_64.pt"))
    torch.save({"model": {"code": subprocess.run}}, half / "evil_64.pt")
    assert "was not read" in refusal(c2i(half / "evil_64.pt"))
    emu3 = emu3_tokenizer(tmp_path / "emu3.json")
    assert "is it the tokenizer of this model" in refusal(lumina(PARITY / "lumina1_lm", emu3))
    assert "no decoder" in refusal(
        lumina(
            PARITY / "lumina1_lm",
            tokenizer,
            vq_decoder=str(PARITY / "llamagen_c2i" / "c2i_tiny_64.pt"),
        )
    )


QUANTIZED: dict[str, dict[str, object]] = {
    "bitsandbytes": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "torchao": {"quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}}},
    "gptq": {"bits": 4, "group_size": 128},
    "awq": {"bits": 4, "version": "gemm"},
    "fp8": {"weight_block_size": [128, 128]},
    "compressed-tensors": {"format": "float-quantized"},
}


@pytest.mark.parametrize("method", QUANTIZED)
def test_weights_quantized_by_other_libraries_are_refused(
    method: str, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name, with the setting that helps, and before a folder is made."""
    folder, out = shutil.copytree(PARITY / "lumina1_lm", tmp_path / "model"), tmp_path / "out"
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, **QUANTIZED[method]}
    (folder / "config.json").write_text(json.dumps(config))
    assert f"already quantized ({method})" in refusal(lumina(folder, tokenizer))
    vqgan = PARITY / "chameleon_vqgan" / "vqgan.ckpt"
    settings = [f"model.tokenizer={tokenizer}", f"model.vq_decoder={vqgan}"]
    settings += ["model.resolution=null", "model.width=64", "model.height=64"]
    line = ["generate", "--profile", "lumina-mgpt-7b-768", "--model", str(folder), "-o", str(out)]
    line += [word for setting in settings for word in ("--set", setting)]
    assert run([*line, "--prompt", "a cat", "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert f"already quantized ({method})" in error and "model.quantize" in error
    assert not out.exists()


def test_llamagen_stages_are_not_confused(tmp_path: Path) -> None:
    path = PARITY / "llamagen_c2i" / "c2i_tiny_64.pt"
    assert "is for images of 64 pixels" in refusal(c2i(path, resolution=128))
    unnamed = tmp_path / "weights.pt"
    shutil.copy(path, unnamed)
    assert "model.resolution" in refusal(c2i(unnamed))


@pytest.mark.parametrize(
    ("width", "height", "resolution", "nearest"),
    [
        (500, 512, None, "512x512"),
        (1024, 1024, 768, "768x768"),
        (256, 256, 512, "480x512"),
        (64, None, None, "--size WxH"),
    ],
)
def test_sizes_not_generated(
    width: int, height: int | None, resolution: int | None, nearest: str, tokenizer: Path
) -> None:
    model = lumina(
        PARITY / "lumina1_lm", tokenizer, width=width, height=height, resolution=resolution
    )
    assert nearest in refusal(model)


def test_float16_is_refused_where_it_overflows(tokenizer: Path) -> None:
    with pytest.raises(ConfigError, match="fp16"):
        open_model(lumina(PARITY / "lumina1_lm", tokenizer), CPU, torch.float16)


_MEASURE = """
import re, sys, torch
from pathlib import Path
from torch import nn
from sjdvp.models.checkpoints import load_strict, open_checkpoint
from sjdvp.models.device_map import DeviceMap
def peak():  # KiB; getrusage would count the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
with torch.device("meta"):
    width = int(sys.argv[3])
    linears = [nn.Linear(width, 4096, bias=False) for _ in range(int(sys.argv[2]))]
    module = nn.ModuleList(linears)
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
before = peak()
checkpoint, cpu = open_checkpoint(Path(sys.argv[1])), DeviceMap(torch.device("cpu"))
load_strict(module, checkpoint, "a random model", torch.bfloat16, cpu)
print((peak() - before) * 1024 / sum(p.nbytes for p in module.parameters()))
"""


def peak_over_size(path: Path, n_tensors: int, width: int) -> float:
    command = [sys.executable, "-c", _MEASURE, str(path), str(n_tensors), str(width)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
def test_memory_of_loading_a_gigabyte(suffix: str, stored: torch.dtype, tmp_path: Path) -> None:
    """The peak is at most 1.15 times the size in the target dtype (bf16, 1 GiB)."""
    n_tensors, width = 32, 4096
    random = torch.randn(4096, width).to(stored)
    tensors = {f"{i}.weight": random.clone() for i in range(n_tensors)}
    path = tmp_path / f"model.{suffix}"
    save_file(tensors, path) if suffix == "safetensors" else torch.save(tensors, path)
    del tensors
    ratio = peak_over_size(path, n_tensors, width)
    print(f"{suffix} {stored}: {ratio:.3f}")
    assert 0.9 < ratio <= 1.15
