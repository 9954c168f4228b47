"""CLIP score and Fréchet distances with tiny encoders of random weights, against torchmetrics
called by hand.
"""

import json
import pickle
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

from sjdvp.errors import ConfigError, FolderError, WeightsError
from sjdvp.quality import (
    clip_distance,
    clip_score,
    inception_distance,
    measure,
    open_clip,
    pairs,
    references,
)
from sjdvp.report.load import load_runs
from tests.report.synthetic import make_run

CPU = torch.device("cpu")
WORDS = ("the", "apple", "plum", "fig", "pear", "a")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A folder with a CLIP of a few thousand random weights."""
    folder = tmp_path_factory.mktemp("clip")
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    tokens = [
        *letters,
        *(letter + "</w>" for letter in letters),
        "<|startoftext|>",
        "<|endoftext|>",
    ]
    tokenizer = CLIPTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=[])
    text = {
        "vocab_size": len(tokens),
        "bos_token_id": len(tokens) - 2,
        "eos_token_id": len(tokens) - 1,
        "max_position_embeddings": 12,
    }
    shape = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = CLIPConfig(
        text_config=text | shape,
        vision_config=shape | {"image_size": 32, "patch_size": 8},
        projection_dim=8,
    )
    torch.manual_seed(3)
    CLIPModel(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    texts = {i: f"{WORDS[i % 5]} and {WORDS[(i * 7 + 1) % 6]}" for i in range(20)}
    return make_run(tmp_path_factory.mktemp("run"), "sjd", 20, texts=texts, failed=(2,))


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder, dice = tmp_path_factory.mktemp("reference"), np.random.default_rng(5)
    (folder / "deeper").mkdir()
    for i in range(21):
        size = (24, 24, 3) if i % 2 else (40, 32, 3)
        Image.fromarray(dice.integers(0, 256, size, dtype=np.uint8)).save(
            folder / "deeper" / f"{i}.png"
        )
    return folder


@pytest.fixture
def metrics():
    return pytest.importorskip(
        "torchmetrics", reason="torchmetrics is not installed (the extra eval)"
    )


def pixels(file):
    return torch.from_numpy(np.array(Image.open(file).convert("RGB"))).permute(2, 0, 1)


def test_pairs_come_from_the_log(run_folder):
    (run,) = load_runs([run_folder])
    found = pairs(run)
    assert len(found) == 19
    assert [(pair.image.name, pair.prompt) for pair in found[:3]] == [
        ("000000.png", "the and apple"),
        ("000001.png", "apple and plum"),
        ("000003.png", "fig and pear"),
    ]


def test_clip_score_is_the_library_s(metrics, weights, run_folder):
    from torchmetrics.functional.multimodal import clip_score as library

    (run,) = load_runs([run_folder])
    clip = open_clip(weights, CPU)
    found = clip_score(pairs(run), clip, CPU)
    rows = run.ok.values()
    images, texts = (
        [pixels(run_folder / row["file"]) for row in rows],
        [row["prompt"] for row in rows],
    )
    assert found == pytest.approx(
        float(library(images, texts, model_name_or_path=lambda: (clip, clip.process))), abs=1e-4
    )
    assert (
        abs(found - float(library(images, texts[1:] + texts[:1], lambda: (clip, clip.process))))
        > 1e-3
    )  # a wrong pairing shows


def test_clip_score_is_the_mean_cosine(metrics, weights, run_folder):
    (run,) = load_runs([run_folder])
    clip, model = open_clip(weights, CPU), CLIPModel.from_pretrained(weights).eval()
    tokenizer, processor = (
        CLIPTokenizer.from_pretrained(weights),
        CLIPImageProcessorPil.from_pretrained(weights),
    )
    cosines = []
    for pair in pairs(run):
        with torch.inference_mode():
            text = tokenizer(pair.prompt, return_tensors="pt", truncation=True, max_length=12)
            out = model(**text, **processor(images=Image.open(pair.image), return_tensors="pt"))
        cosines.append(float((out.image_embeds * out.text_embeds).sum()))
    assert clip_score(pairs(run), clip, CPU) == pytest.approx(
        max(100 * sum(cosines) / len(cosines), 0), abs=1e-3
    )


def test_long_captions_keep_their_end_mark(weights):
    inputs = open_clip(weights, CPU).process(text=["abcdefghijklmnopqrstuvwxyz", "a"])
    assert inputs["input_ids"].shape == (2, 12)
    assert inputs["input_ids"][0, -1] == 53


def test_distance_is_the_library_s(metrics, weights, run_folder, reference):
    from torchmetrics.image.fid import FrechetInceptionDistance

    clip = open_clip(weights, CPU)
    (run,) = load_runs([run_folder])
    files = [pair.image for pair in pairs(run)]
    by_hand = FrechetInceptionDistance(feature=clip)
    with torch.inference_mode():
        for file in reversed(files):
            by_hand.update(pixels(file)[None], real=False)
        for file in references(reference):
            by_hand.update(pixels(file)[None], real=True)
    found = clip_distance(files, references(reference), clip, CPU)
    assert found == pytest.approx(float(by_hand.compute()), rel=1e-3, abs=1e-5)
    assert found > 10 * abs(clip_distance(files, files, clip, CPU))


def test_fid_is_torch_fidelity_s(metrics, tmp_path, run_folder, reference, monkeypatch):
    """Only where torch-fidelity can be imported: it needs a torchvision, and none fits beside the
    torch of constraints.txt.
    """
    fidelity = pytest.importorskip(
        "torch_fidelity", reason="torch-fidelity is not there", exc_type=Exception
    )
    from torch_fidelity.feature_extractor_inceptionv3 import (
        FeatureExtractorInceptionV3 as Inception,
    )

    file = tmp_path / "inception.pth"
    torch.save({}, file)
    torch.manual_seed(0)
    with monkeypatch.context() as patch:
        patch.setattr(Inception, "load_state_dict", lambda *_: None)
        network = Inception("random", ["2048"], str(file))
    for part in network.modules():
        if isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(
                part.weight
            )  # else the features of all images are nearly the same
    torch.save(network.state_dict(), file)
    (run,) = load_runs([run_folder])
    found = inception_distance(
        [pair.image for pair in pairs(run)], references(reference), file, CPU
    )
    given = {
        "feature_extractor_weights_path": str(file),
        "samples_find_deep": True,
        "batch_size": 1,
        "cuda": False,
    }
    theirs = fidelity.calculate_metrics(
        input1=str(run_folder / "images"), input2=str(reference), fid=True, verbose=False, **given
    )
    assert found == pytest.approx(theirs["frechet_inception_distance"], rel=1e-2)


def test_a_run_may_be_the_reference(metrics, weights, run_folder):
    (found,) = measure([run_folder], clip=weights, reference=run_folder, inception=None, device=CPU)
    assert (found.run, found.images, found.lossless, found.fid) == ("sjd", 19, True, None)
    assert found.fid_clip == pytest.approx(0, abs=1e-3)


def test_missing_package_is_said(weights, run_folder, monkeypatch):
    for module in ("torchmetrics", "torchmetrics.multimodal.clip_score"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not there
    with pytest.raises(ConfigError, match="the package torchmetrics is not installed") as caught:
        measure([run_folder], clip=weights, reference=None, inception=None, device=CPU)
    assert caught.value.hint == "in the checkout of sjdvp: pip install '.[eval]'"


@pytest.mark.parametrize(
    ("name", "word"),
    [("absent", "no such folder of CLIP weights"), (".", "no CLIP model that can be read")],
)
def test_missing_weights_are_said(tmp_path, name, word):
    with pytest.raises(WeightsError, match=word):
        open_clip(tmp_path / name, CPU)


def test_inception_weights_are_opened_with_care(metrics, tmp_path, run_folder):
    class Hostile:
        def __reduce__(self):
            return (print, ("code from a weights file ran",))

    file = tmp_path / "inception.pth"
    file.write_bytes(pickle.dumps(Hostile()))
    for weights, word in (
        (tmp_path / "absent.pth", "no such file"),
        (file, "not the Inception weights"),
    ):
        with pytest.raises(WeightsError, match=word):
            measure([run_folder], clip=None, reference=run_folder, inception=weights, device=CPU)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
@example(b"a photo of a bench\na photo of a cow\n")
@example(b"")
def test_garbage_is_no_inception_weights(metrics, tmp_path, run_folder, garbage):
    file = tmp_path / "garbage.pth"
    file.write_bytes(garbage)
    with pytest.raises(WeightsError, match=r"not the Inception weights of torch-fidelity: ."):
        measure([run_folder], clip=None, reference=run_folder, inception=file, device=CPU)


def test_a_missing_run_is_said_before_missing_weights(tmp_path):
    with pytest.raises(FolderError, match="nope is not a run folder"):
        measure(
            [tmp_path / "nope"],
            clip=tmp_path / "absent",
            reference=tmp_path / "absent",
            inception=None,
            device=CPU,
        )


def test_folders_without_images(tmp_path):
    with pytest.raises(FolderError, match="holds 0 images"):
        references(tmp_path)
    (run,) = load_runs([make_run(tmp_path / "run", "sjd", 2)])
    (tmp_path / "run" / "images" / "000001.png").unlink()
    with pytest.raises(FolderError, match=r"000001\.png is missing"):
        pairs(run)


def test_command(metrics, weights, run_folder, capsys):
    from sjdvp_cli.app import run

    assert run(["eval", str(run_folder), "--clip", str(weights), "--json", "--device", "cpu"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["runs"]
    keys = ["run", "lossless", "quantize", "images", "clip_score", "fid_clip", "fid"]
    assert list(line) == keys
    assert run(["eval", str(run_folder)]) == 2
    assert "eval needs --clip or --inception" in capsys.readouterr().err
