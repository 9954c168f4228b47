"""The training of the embedded model on made-up images, with a transformer of a few weights."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from sjdvp.models import emoji
from training.emoji import evaluate, export, prompts, relaxed
from training.emoji.batches import (
    N_IMAGE_TOKENS,
    N_POSITIONS,
    TrainingSource,
    corrupt,
    keep,
    position_phrases,
)
from training.emoji.captions import BOI, BOS, PAD, UNK, build_tokenizer, caption, held_out_pairs
from training.emoji.codebook import (
    CLEAR,
    N_PATCH_TOKENS,
    build_table,
    k_means,
    offsets,
    place,
    to_features,
    to_patches,
)
from training.emoji.data import COLOURS, IMAGE_SIDE, OBJECT_SIDE, PALETTE, read_concepts
from training.emoji.muon import orthogonal
from training.emoji.pixels import paste
from training.emoji.train import Trainer, TransformerPlan, loss_of

MODEL = Path(emoji.__file__).parent / "model"
NAMES = [c.name for c in read_concepts()]
FEW = ["red disc", "blue bar", "green ring", "grey box"]


def drawings(n: int = 4) -> np.ndarray:
    """Discs with soft edges in several colours, premultiplied RGBA."""
    y, x = np.mgrid[:OBJECT_SIDE, :OBJECT_SIDE] - OBJECT_SIDE / 2
    rng = np.random.default_rng(0)
    out = []
    for i in range(n):
        alpha = np.clip((26 + 3 * i - np.hypot(x, y)) / 3, 0, 1)[..., None]
        shade = rng.random(3) * (0.6 + 0.4 * np.sin(x / 3 + i)[..., None] ** 2)
        out.append(np.concatenate([alpha * shade, alpha], -1))
    return np.array(out, np.float32)


@pytest.fixture(scope="module")
def source() -> TrainingSource:
    table = build_table(drawings(), n_image_tokens=40)
    return TrainingSource(FEW, table, {(0, 5)}, build_tokenizer(FEW))


def small_transformer(n_text: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=n_text + export.N_IMAGE_TOKENS, pad_token_id=PAD, **shape)
    )


# ---- images and tokens


def test_a_patch_keeps_its_token_on_every_background(source: TrainingSource) -> None:
    near = source.table.near_CPPK[1, :, :, 0]
    images = [place(near, 2, 3, colour) for colour in range(len(COLOURS))]
    filled = images[0] < N_PATCH_TOKENS
    assert filled.sum() > 40
    for colour, image in enumerate(images):
        assert (image[filled] == images[0][filled]).all()
        assert (image[~filled] == N_PATCH_TOKENS + colour).all()


def test_a_shift_by_whole_patches_moves_tokens_unchanged(source: TrainingSource) -> None:
    near = source.table.near_CPPK[2, :, :, 0]
    assert (np.roll(place(near, 0, 0, 4), (3, 2), (0, 1)) == place(near, 3, 2, 4)).all()


def test_every_offset_leaves_a_margin_on_all_sides(source: TrainingSource) -> None:
    near = np.full((10, 10), CLEAR)
    near[3:5, 1:9] = 7  # a wide object: its offsets reach outside the image
    tops, lefts = offsets(near)
    assert (tops, lefts) == (range(-2, 10), range(1, 6))
    for top, left in itertools.product((tops[0], tops[-1]), (lefts[0], lefts[-1])):
        filled = place(near, top, left, 0) == 7
        assert filled.sum() == 16
        assert not filled[[0, -2, -1]].any() and not filled[:, [0, 1, -2, -1]].any()
    for concept in range(len(FEW)):
        assert all(len(steps) >= 3 for steps in source.offsets(concept))


def test_a_position_is_named_only_where_it_is_true() -> None:
    allowed = (range(1, 6), range(2, 5))
    assert position_phrases((1, 4), allowed) == ["at the top", "on the right"]
    assert position_phrases((5, 3), allowed) == ["at the bottom"]
    assert position_phrases((3, 3), allowed) == ["in the middle"]


def test_distance_is_the_mean_over_black_and_white() -> None:
    one, other = to_patches(drawings())[0, 4:6, 4].reshape(2, -1)
    pixels = np.stack([one, other]).reshape(2, 64, 4)
    black, white = pixels[..., :3], pixels[..., :3] + 1 - pixels[..., 3:]
    want = (np.square(black[0] - black[1]).sum() + np.square(white[0] - white[1]).sum()) / 2
    assert np.square(to_features(one) - to_features(other)).sum() == pytest.approx(want, rel=1e-5)


def test_k_means_is_deterministic_and_finds_clusters() -> None:
    rng = np.random.default_rng(0)
    middles = np.array([[0, 0], [9, 0], [0, 9]], np.float32)
    points = (middles[rng.integers(3, size=300)] + rng.normal(0, 0.2, (300, 2))).astype(np.float32)
    weight = np.ones(300, np.float32)
    first, again = (k_means(points, weight, 12, seed=1) for _ in range(2))
    assert (first == again).all()
    assert np.linalg.norm(points[:, None] - first[None], axis=-1).min(1).max() < 0.7


def test_texture_samples_near_tokens_and_clear_patches_stay_clear(source: TrainingSource) -> None:
    table = source.table
    clear = table.near_CPPK[..., 0] == CLEAR
    assert clear.any() and (table.near_CPPK[clear] == CLEAR).all()
    entropy = -(table.chance_CPPK * np.log(table.chance_CPPK + 1e-12)).sum(-1)[~clear].mean()
    assert entropy == pytest.approx(0.5, abs=0.02)


# ---- captions and the split


def test_a_tenth_of_the_pairs_is_held_out_and_never_trained(source: TrainingSource) -> None:
    held = held_out_pairs(len(NAMES))
    assert len(held) == round(0.1 * len(NAMES) * len(COLOURS))
    assert held == held_out_pairs(len(NAMES)) and len({c for c, _ in held}) == len(held)
    rng = np.random.default_rng(0)
    assert {source.colour(0, rng) for _ in range(400)} == set(range(len(COLOURS))) - {5}


def test_every_caption_names_its_concept_and_its_colour() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        name, colour = NAMES[rng.integers(len(NAMES))], COLOURS[rng.integers(len(COLOURS))]
        text = caption(name, colour, ["on the left"], rng)
        assert name in text and (colour in text or colour == "white")


def test_any_text_can_be_tokenized() -> None:
    tokenizer = build_tokenizer(NAMES)
    assert UNK not in tokenizer.encode("A Red  APPLE on a blue background!").ids
    assert tokenizer.encode("zyx 🦊 ünïcode\t…").ids.count(UNK) >= 3
    assert tokenizer.encode("").ids == []


def test_prompts_are_half_held_out_and_are_what_the_recipe_chooses() -> None:
    asks = prompts.read(NAMES)
    assert [a.text for a in asks] == prompts.choose(NAMES)
    assert [a.held_out for a in asks] == [False, True] * 100
    assert len({a.concept for a in asks}) == 200


# ---- batches and training


def test_a_batch_is_a_function_of_its_step(source: TrainingSource) -> None:
    one, again, other = source.batch(3, 4, 0.5), source.batch(3, 4, 0.5), source.batch(4, 4, 0.5)
    assert torch.equal(one.input_BK, again.input_BK) and not torch.equal(
        one.target_BK, other.target_BK
    )
    assert (one.text_BT[:, -1] == BOI).all() and ((one.text_BT == BOS).sum(1) == 1).all()
    assert (one.target_BK < N_PATCH_TOKENS + len(COLOURS)).all()


def test_corruption_spoils_inputs_of_some_rows_only() -> None:
    clean = np.arange(64 * 256).reshape(64, 256) % 1000
    rng = np.random.default_rng(0)
    assert (corrupt(clean, 0.0, rng) == clean).all()
    corrupted = (corrupt(clean, 0.5, rng) != clean).mean(1)
    assert 0.3 < (corrupted > 0).mean() < 0.7 and corrupted.max() < 0.6


def test_kept_places_hold_the_object_and_stand_for_all(source: TrainingSource) -> None:
    rng = np.random.default_rng(0)
    clean = source.tokens_at(1, 3, source.offset(1, rng), rng).reshape(-1)
    places, weight = keep(clean, 160, rng)
    assert places[0] == 0 and (np.diff(places) > 0).all()
    assert set(np.flatnonzero(clean < N_PATCH_TOKENS)) <= set(places)
    assert weight.sum() == pytest.approx(N_POSITIONS)
    everything, ones = keep(clean, N_POSITIONS, rng)
    assert (everything == np.arange(N_POSITIONS)).all() and (ones == 1).all()


def test_padding_and_left_out_places_change_no_loss_by_themselves(source: TrainingSource) -> None:
    transformer = small_transformer(source.tokenizer.get_vocab_size())
    batch = source.batch(0, 2, 0.0)
    piece = batch.tensors()
    padded = (torch.nn.functional.pad(batch.text_BT, (3, 0), value=PAD), *piece[1:])
    losses = [loss_of(transformer, N_IMAGE_TOKENS, *tensors).item() for tensors in (piece, padded)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_newton_schulz_makes_a_matrix_nearly_orthogonal() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(2, 24, 40), rounds=8).float())
    assert values.min() > 0.5 and values.max() < 1.3


def test_training_goes_on_where_it_stopped(source: TrainingSource, tmp_path: Path) -> None:
    plan = TransformerPlan(batch=4, compile=False, sparse=96, warmup_steps=1, budget_s=1e9)

    def trainer(folder: str) -> Trainer:
        return Trainer(
            small_transformer(source.tokenizer.get_vocab_size()), source, plan, tmp_path / folder
        )

    whole = trainer("whole")
    first = whole.one_step()
    for _ in range(3):
        whole.one_step()
    trainer("parts").run(max_steps=2)
    resumed = trainer("parts")
    assert resumed.step == 2
    resumed.run(max_steps=4)
    assert resumed.step == 4
    for a, b in zip(whole.average.parameters(), resumed.average.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert whole.one_step() < first


def test_a_rotary_frequency_turns_once_in_a_row() -> None:
    config = export.transformer_config(10)
    rotary = LlamaRotaryEmbedding(config)
    assert config.head_dim == export.HEAD_SIZE
    turns = rotary.inv_freq * export.GRID / (2 * math.pi)
    assert (turns - 1).abs().min() < 1e-5


def test_the_end_of_the_budget_trains_on_all_positions(
    source: TrainingSource, tmp_path: Path
) -> None:
    plan = TransformerPlan(compile=False)
    trainer = Trainer(small_transformer(source.tokenizer.get_vocab_size()), source, plan, tmp_path)
    assert trainer.n_kept == plan.sparse
    trainer.spent_s = 0.95 * plan.budget_s
    assert trainer.n_kept == N_POSITIONS
    assert plan.rate(trainer.progress, 5000) < 0.02


# ---- scores


def test_scoring_knows_right_from_wrong() -> None:
    concepts = drawings()
    asks = [prompts.Ask(f"{i}", i, 3 + i, i % 2 == 1) for i in range(4)]

    def image(concept: int, top: int, colour: int) -> np.ndarray:
        return np.uint8(np.round(255 * paste(concepts[concept], top, 1, colour)))

    right = np.array([[image(i, top, 3 + i) for top in (0, 3)] for i in range(4)])
    scores, rows = evaluate.score(right, asks, concepts)
    assert scores.passed() and all(r["concept"] for r in rows)
    wrong = np.array([[image((i + 1) % 4, 2, 2 + i) for _ in range(2)] for i in range(4)])
    scores, _ = evaluate.score(wrong, asks, concepts)
    assert (
        scores.background == scores.concept_trained == scores.concept_held_out == scores.differ == 0
    )


def test_an_object_at_the_border_and_a_piece_wrapped_around_are_cut() -> None:
    whole = np.uint8(np.round(255 * paste(drawings()[3], 3, 4, 2)))
    at_border = np.roll(whole, -45, axis=1)
    wrapped = np.roll(whole, 50, axis=1)
    speck = whole.copy()
    speck[0, :5] = 0
    assert evaluate.cut(np.stack([whole, at_border, wrapped, speck])).tolist() == [
        False,
        True,
        True,
        False,
    ]


# ---- what ships


@pytest.mark.skipif(not MODEL.is_dir(), reason="the model is not there yet")
def test_the_stored_model_is_complete_and_small() -> None:
    files = {p.name: p.stat().st_size for p in MODEL.iterdir()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "sjdvp.json",
        "vq_decoder.safetensors",
    } == set(files)
    assert sum(files.values()) <= 40e6
    about = json.loads((MODEL / "sjdvp.json").read_text("utf-8"))
    assert about["format"] == "sjdvp.model/1" and about["vocab_size"] == N_IMAGE_TOKENS
    config = json.loads((MODEL / "config.json").read_text("utf-8"))
    assert about["first_image_id"] + N_IMAGE_TOKENS == config["vocab_size"]
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == about["first_image_id"]
    assert tokenizer.to_str() == build_tokenizer(NAMES).to_str()
    with safe_open(MODEL / "vq_decoder.safetensors", "pt") as pixels:
        names = set(pixels.keys())
    assert names == set(export.build_pixels().state_dict())


def test_the_palette_is_told_apart() -> None:
    colours = np.array(list(PALETTE.values()), float)
    apart = np.linalg.norm(colours[:, None] - colours[None], axis=-1) + 1e9 * np.eye(len(colours))
    assert apart.min() > evaluate.FAR
    assert IMAGE_SIDE == 16 * 8


def test_images_of_a_sweep_are_found_whatever_it_varies(tmp_path):
    """A variant's name has only the settings that vary; its folder's name has all."""
    for name in ("sjd", "gsd,relax.group=3", "lantern,relax.scale=1", "lantern,relax.scale=2"):
        (tmp_path / name).mkdir()
    (tmp_path / "gsd,relax.group=3.seen.jsonl").touch()
    for line, folder in (
        ("sjd", "sjd"),
        ("gsd", "gsd,relax.group=3"),
        ("lantern,relax.scale=2", "lantern,relax.scale=2"),
    ):
        assert relaxed.images_of(tmp_path, line).name == folder
