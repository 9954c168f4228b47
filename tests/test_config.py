"""Settings are read strictly, from tables and from text."""

import dataclasses
import math

import pytest

from sjdvp.config import (
    RENAMED,
    DecoderConfig,
    RunConfig,
    RunSettings,
    SamplingConfig,
    from_table,
    read_setting,
    renamed,
    setting_types,
)
from sjdvp.errors import ConfigError


def test_table_becomes_dataclass():
    config = from_table(
        RunConfig,
        {
            "sampling": {"cfg_scale": 3, "top_k": 50},
            "decoder": {"prediction": {"kind": "published"}},
        },
    )
    assert config.sampling == SamplingConfig(cfg_scale=3.0, top_k=50)
    assert isinstance(config.sampling.cfg_scale, float)
    assert config.decoder.prediction.kind == "published"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"sampling": {"cfg_scal": 3}}, "unknown key sampling.cfg_scal"),
        ({"sampling": 3}, "sampling must be a section of keys, found 3"),
        ({"sampling": {"cfg_scale": "3"}}, "sampling.cfg_scale must be a number, found '3'"),
        ({"sampling": {"cfg_scale": True}}, "sampling.cfg_scale must be a number, found True"),
        ({"sampling": {"cfg_scale": math.inf}}, "sampling.cfg_scale must be a number, found inf"),
        ({"sampling": {"cfg_scale": math.nan}}, "sampling.cfg_scale must be a number, found nan"),
        ({"sampling": {"cfg_scale": 10**400}}, "sampling.cfg_scale must be a number"),
        ({"sampling": {"top_k": 5.0}}, "sampling.top_k must be a whole number, found 5.0"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p must be above 0 and at most 1, found 0.0"),
        (
            {"decoder": {"drafter": "couple"}},
            "decoder.drafter must be independent, coupled or gumbel, found 'couple'",
        ),
        ({"decoder": {"drafter": ["coupled"]}}, "decoder.drafter must be independent"),
        ({"decoder": {"window": 0}}, "decoder.window must be auto, or between 1 and 1024, found 0"),
        (
            {"run": {"device_map": "auto", "step": "graph"}},
            "run.step must be auto or eager with run.device_map",
        ),
        (
            {"run": {"device_map": "auto", "device": "cuda:1"}},
            "run.device must be auto with run.device_map",
        ),
        ({"run": {"metadata": "no"}}, "run.metadata must be true or false, found 'no'"),
        (
            {"run": {"batch_size": "many"}},
            "run.batch_size must be a whole number or auto, found 'many'",
        ),
        (
            {"run": {"batch_size": True}},
            "run.batch_size must be a whole number or auto, found True",
        ),
        ({"model": {"width": 0}}, "model.width must be 1 or more, found 0"),
        ({"model": {"resolution": -512}}, "model.resolution must be 1 or more, found -512"),
        (
            {"decoder": {"relax": {"group": 2}}},
            "decoder.relax.group must be an odd number, 1 or more, found 2",
        ),
        ({"run": {"seed": 2**53}}, "run.seed must be between 0 and 2^53 - 1"),
        (
            {"decoder": {"prediction": {"kind": "published", "rises": 5}}},
            "decoder.prediction.history must be at least decoder.prediction.rises",
        ),
    ],
)
def test_mistakes_name_the_key(table, words):
    with pytest.raises(ConfigError) as caught:
        from_table(RunConfig, table)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("sampling.cfg_scale", "3", 3.0),
        ("sampling.cfg_scale", "1e-5", 1e-5),
        ("sampling.top_k", "012", 12),
        ("run.batch_size", "auto", "auto"),
        ("run.batch_size", "8", 8),
        ("run.seed", "null", None),
        ("run.metadata", "false", False),
        ("model.path", "8", "8"),
        ("model.path", "null", None),
        ("decoder.drafter", "coupled", "coupled"),
    ],
)
def test_text_is_read_by_the_type_of_its_setting(key, text, value):
    read = read_setting(key, text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("sampling.cfg_scale", "nan"),
        ("sampling.cfg_scale", "three"),
        ("sampling.cfg_scale", ""),
        ("sampling.top_k", "1e3"),
        ("sampling.top_k", "1_000"),
        ("run.metadata", "no"),
        ("decoder.drafter", "Coupled"),
    ],
)
def test_text_of_another_type_is_refused(key, text):
    with pytest.raises(ConfigError, match=key):
        read_setting(key, text)


def test_unknown_key_is_answered_with_the_right_one():
    with pytest.raises(ConfigError) as caught:
        read_setting("cfg_scale", "3")
    assert caught.value.hint == "did you mean sampling.cfg_scale?"


OLD_NAMES = [
    ({"model": {"pixels": "x"}}, "model.vq_decoder"),
    ({"decoder": {"fresh": "left"}}, "decoder.init"),
    ({"decoder": {"prior": {"kind": "none"}}}, "decoder.prediction"),
    ({"decoder": {"prediction": {"pull": 0.5}}}, "decoder.prediction.momentum"),
    ({"decoder": {"prediction": {"kind": "growth"}}}, "published"),
    ({"decoder": {"prediction": {"kind": "history"}}}, "momentum"),
    ({"decoder": {"verifier": "exact"}}, "rejection"),
]


@pytest.mark.parametrize(("table", "now"), OLD_NAMES)
def test_old_names_are_refused_with_the_new_one(table, now):
    with pytest.raises(ConfigError) as caught:
        from_table(RunConfig, table)
    assert caught.value.hint == f"it is now called {now}"


def test_every_renamed_key_is_tested_and_leads_to_a_known_one():
    assert len(OLD_NAMES) == len(RENAMED)
    known = " ".join(setting_types())
    for old in RENAMED:
        assert renamed(old).partition("=")[0] in known
        assert old.partition("=")[0] not in setting_types() or "=" in old
    assert renamed("decoder.prior.pull") == "decoder.prediction.momentum"
    assert renamed("decoder.prior.kind=growth") == "decoder.prediction.kind=published"


def test_old_names_given_as_text_are_refused_with_the_new_one():
    with pytest.raises(ConfigError) as caught:
        read_setting("decoder.prior.top_k", "3")
    assert caught.value.hint == "it is now called decoder.prediction.top_k"
    with pytest.raises(ConfigError) as caught:
        read_setting("decoder.verifier", "exact")
    assert caught.value.hint == "it is now called rejection"


def test_every_setting_is_listed():
    assert {
        "profile",
        "model.path",
        "decoder.prediction.rises",
        "decoder.relax.delta",
        "run.seed",
    } <= set(setting_types())


def test_fingerprint_follows_pixels_only():
    config = RunConfig()
    same = dataclasses.replace(
        config, run=RunSettings(batch_size=8, seed=3), profile="other", description="x"
    )
    other = dataclasses.replace(config, decoder=DecoderConfig(window=8))
    assert config.fingerprint() == same.fingerprint() != other.fingerprint()
