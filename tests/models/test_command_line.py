"""`sjdvp generate` for each profile, with a tiny model folder in the official format."""

import base64
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from sjdvp_cli.app import run
from tests.models.harness import PARITY
from tests.models.tiny import (
    chameleon_tokenizer,
    emu3_tokenizer,
    glm_image_tokenizer,
    janus_tokenizer,
    liquid_tokenizer,
    lumina2_model,
    text_encoder,
)

VQGAN = PARITY / "chameleon_vqgan" / "vqgan.ckpt"
FREE_SIZE = [
    "--set",
    "model.resolution=null",
    "--set",
    "model.width=64",
    "--set",
    "model.height=32",
]
SMALL = ["--set", "model.resolution=64", "--set", "model.width=64", "--set", "model.height=64"]


def copied(folder: Path, *files: Path) -> Path:
    folder.mkdir()
    for file in files:
        (shutil.copytree if file.is_dir() else shutil.copy)(file, folder / file.name)
    return folder


def lumina(folder: Path) -> Path:
    copied(folder, *(PARITY / "lumina1_lm").glob("*.*"), VQGAN)
    chameleon_tokenizer(folder / "tokenizer.json")
    return folder


def anole(folder: Path) -> Path:
    copied(folder, PARITY / "anole_meta" / "models")
    chameleon_tokenizer(copied(folder / "tokenizer", VQGAN) / "text_tokenizer.json")
    return folder


def llamagen(kind: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        copied(folder, PARITY / f"llamagen_{kind}" / f"{kind}_tiny_64.pt")
        shutil.copy(PARITY / "llamagen_vq" / "vq_ds16_tiny.pt", folder / f"vq_ds16_{kind}.pt")
        return folder

    return make


def emu3(folder: Path) -> Path:
    copied(folder, *(PARITY / "emu3_gen_hf").glob("*.*"))
    emu3_tokenizer(folder / "tokenizer.json")
    return folder


def emu35(folder: Path) -> Path:
    return copied(folder, *(PARITY / "emu35").glob("*.*"))


def janus(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        copied(folder, *(PARITY / name).glob("*.*"))
        janus_tokenizer(folder / "tokenizer.json")
        return folder

    return make


def janus_1(folder: Path) -> Path:
    """Write a folder like Janus-1.3B's: original weight names, the prompt format in a file."""
    janus("janus_original_layout")(folder)
    stored = torch.load(folder / "pytorch_model.bin", weights_only=True)
    save_file({name: w.clone() for name, w in stored.items()}, folder / "model.safetensors")
    (folder / "pytorch_model.bin").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"sft_format": "deepseek_old"}))
    return folder


def liquid(folder: Path) -> Path:
    copied(folder, *(PARITY / "liquid").glob("*.*"), VQGAN)
    liquid_tokenizer(folder / "tokenizer.json")
    return folder


CASES = {
    "lumina-mgpt-7b-768": (lumina, "a cat", FREE_SIZE, (64, 32)),
    "lumina-mgpt-2": (lumina2_model, "a cat", FREE_SIZE, (64, 32)),
    "anole-7b": (anole, "a cat", SMALL, (64, 64)),
    "liquid-7b": (liquid, "a cat", SMALL, (64, 64)),
    "llamagen-c2i-b-256": (llamagen("c2i"), "7", [*SMALL, "--set", "model.heads=4"], (64, 64)),
    "llamagen-t2i-256": (llamagen("t2i"), "a cat", [*SMALL, "--set", "model.heads=4"], (64, 64)),
    "emu3-gen": (emu3, "a cat", FREE_SIZE, (64, 32)),
    "emu3.5-image": (
        emu35,
        "a cat",
        [*FREE_SIZE, "--set", f"model.vq_decoder={PARITY / 'emu35_ibq'}"],
        (64, 32),
    ),
    "janus-1.3b": (janus_1, "a cat", SMALL, (64, 64)),
    "janus-pro-1b": (janus("janus_hf"), "a cat", SMALL, (64, 64)),
    "janus-pro-7b": (janus("janus_original_layout"), "a cat", SMALL, (64, 64)),
}


@pytest.mark.process
@pytest.mark.parametrize("profile", CASES)
def test_generate(
    profile: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    make, prompt, settings, size = CASES[profile]
    model, out = make(tmp_path / "model"), tmp_path / "out"
    if "t2i" in profile:
        settings = [*settings, "--set", f"model.text_encoder={text_encoder(tmp_path / 't5')}"]
    line = [
        "generate",
        "--profile",
        profile,
        "--model",
        str(model),
        "--prompt",
        prompt,
        "-o",
        str(out),
        "--seed",
        "1",
        "--json",
        "--save-tokens",
        *settings,
    ]
    code = run([*line, "--device", "cpu", "--window", "4"])
    streams = capsys.readouterr()
    assert code == 0, streams.err
    assert json.loads(streams.out.splitlines()[-1])["ok"] == 1
    with Image.open(out / "images" / "000000.png") as image:
        assert (image.size, image.mode) == (size, "RGB")
        assert len(set(image.tobytes())) > 10
    file = out / "images" / "000000.png"
    before = file.read_bytes()
    capsys.readouterr()
    assert run(["show", str(file)]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert f"model.path={model}" in command
    assert run([*command[1:-1], str(tmp_path / "again"), "--device", "cpu"]) == 0
    assert (tmp_path / "again/images/000000.png").read_bytes() == before
    file.unlink()
    assert run(["decode", str(out), "--device", "cpu"]) == 0
    assert file.read_bytes() == before  # from its tokens, by the VQ decoder alone


@pytest.mark.process
@pytest.mark.parametrize("profile", ["lumina-mgpt-7b-768", "llamagen-t2i-256"])
def test_libraries_say_nothing_on_stderr(profile: str, tmp_path: Path) -> None:
    make, prompt, settings, _ = CASES[profile]
    if "t2i" in profile:
        settings = [*settings, "--set", f"model.text_encoder={text_encoder(tmp_path / 't5')}"]
    line = ["generate", "--profile", profile, "--model", str(make(tmp_path / "model"))]
    line += ["--prompt", prompt, "-o", str(tmp_path / "out"), "--device", "cpu", "--window", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "sjdvp_cli", *line, *settings],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")},
    )
    assert done.returncode == 0, done.stderr
    foreign = [text for text in done.stderr.splitlines() if not text.startswith("sjdvp: ")]
    assert foreign == []


@pytest.mark.process
def test_a_prompt_that_is_not_a_class_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    model = llamagen("c2i")(tmp_path / "model")
    line = [
        "generate",
        "--profile",
        "llamagen-c2i-b-256",
        "--model",
        str(model),
        "--prompt",
        "a cat",
        "-o",
        str(tmp_path / "out"),
    ]
    assert run([*line, *SMALL, "--set", "model.heads=4", "--device", "cpu"]) != 0
    assert "takes class numbers from 0 to 9" in capsys.readouterr().err


@pytest.mark.process
def test_the_tokens_of_glm_image_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no VQ decoder: its tokens are the result, there for diffusers."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    model = copied(tmp_path / "model", *(PARITY / "glm_image").glob("*.*"))
    glm_image_tokenizer(model / "tokenizer.json")
    line = ["generate", "--profile", "glm-image", "--model", str(model), "--prompt", "a cat"]
    line += ["--set", "model.width=96", "--set", "model.height=64", "--device", "cpu"]
    line += ["-o", str(tmp_path / "out"), "--window", "8"]
    assert run(line) == 2
    assert "save them with --save-tokens" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run([*line, "--save-tokens"]) == 0
    assert run(["decode", str(tmp_path / "out"), "--device", "cpu"]) == 2
    assert "another program turns its tokens into pixels" in capsys.readouterr().err
    row = json.loads((tmp_path / "out" / "tokens.shard-000-of-001.jsonl").read_text())
    assert len(base64.b64decode(row["tokens"])) == 2 * 6  # of the image, not of its preview


@pytest.mark.process
def test_many_images_of_emu3_with_rows_that_ask_for_different_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batch size auto counts the memory of the VQ decoder; rows differ in size and guidance."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    make, _, settings, size = CASES["emu3-gen"]
    rows = [
        {"prompt": "a cat", "seed": 7},
        {"prompt": "a dog", "n": 2, "cfg_scale": 1.5},
        {"prompt": "a cow", "negative_prompt": "a dog", "size": "32x64"},
    ]
    prompts = tmp_path / "rows.jsonl"
    prompts.write_text("\n".join(map(json.dumps, rows)))
    line = ["generate", "--profile", "emu3-gen", "--model", str(make(tmp_path / "model"))]
    line += ["--prompts", str(prompts), "-o", str(tmp_path / "out"), "--device", "cpu"]
    assert run([*line, *settings, "--window", "4", "--quiet"]) == 0, capsys.readouterr().err
    log = (tmp_path / "out" / "log.shard-000-of-001.jsonl").read_text().splitlines()
    asked = {
        row["index"]: (row["seed"], row["width"], row["params"]) for row in map(json.loads, log)
    }
    assert len(log) == 4
    assert asked[0][:2] == (7, size[0])
    assert asked[1][2]["cfg_scale"] == 1.5
    assert (asked[2][1], asked[2][2]["negative_prompt"]) == (32, "a dog")
