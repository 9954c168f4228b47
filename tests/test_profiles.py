"""Layers, origins, decoder presets, strict YAML, and where profiles are found."""

import pytest

from sjdvp.errors import ConfigError
from sjdvp.presets import PRESETS
from sjdvp.profiles import find, list_profiles, packaged_folder, resolve
from sjdvp.strict_yaml import load_mapping


@pytest.fixture
def home(tmp_path):
    """An environment whose user folder is empty, and the folder."""
    folder = tmp_path / "config" / "sjdvp"
    (folder / "profiles").mkdir(parents=True)
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}, folder


def mistake(action, *arguments, **named):
    with pytest.raises(ConfigError) as caught:
        action(*arguments, **named)
    return f"{caught.value} | {caught.value.hint}"


def test_precedence_and_origins(home):
    environ, folder = home
    (folder / "config.yaml").write_text("sampling: {top_k: 7, top_p: 0.5}\nrun: {seed: 1}\n")
    (folder / "profiles" / "mine.yaml").write_text("sampling: {top_p: 0.6, temperature: 0.9}\n")
    environ |= {"SJDVP_SAMPLING_TEMPERATURE": "0.7", "SJDVP_RUN_SEED": "2"}
    resolved = resolve("mine", {"run.seed": "3"}, environ)
    sampling = resolved.config.sampling
    assert (sampling.top_k, sampling.top_p, sampling.temperature, resolved.config.run.seed) == (
        7,
        0.6,
        0.7,
        3,
    )
    origins = [
        resolved.origins[f"sampling.{key}"]
        for key in ("cfg_scale", "top_k", "top_p", "temperature")
    ]
    assert origins == ["built-in", "user file", "profile mine", "SJDVP_SAMPLING_TEMPERATURE"]
    assert resolved.origins["run.seed"] == "flag"


def test_a_flag_that_repeats_the_default_still_counts_as_given(home):
    environ, folder = home
    (folder / "profiles" / "mine.yaml").write_text("sampling: {top_k: 50}\n")
    assert resolve("mine", {"sampling.top_k": 0}, environ).config.sampling.top_k == 0


def test_profile_comes_from_flag_environment_user_file_or_default(home):
    environ, folder = home
    for name in ("a", "b", "c"):
        (folder / "profiles" / f"{name}.yaml").write_text("")
    assert resolve(environ=environ).config.profile == "emoji"
    (folder / "config.yaml").write_text("profile: a\n")
    assert resolve(environ=environ).config.profile == "a"
    environ["SJDVP_PROFILE"] = "b"
    resolved = resolve(environ=environ)
    assert (resolved.config.profile, resolved.origins["profile"]) == ("b", "SJDVP_PROFILE")
    assert resolve("c", environ=environ).origins["profile"] == "flag"


def test_no_home_is_no_error():
    assert resolve(environ={}).config.profile == "emoji"
    assert (
        resolve(environ={"HOME": "", "XDG_CONFIG_HOME": "relative/is/ignored"}).config.profile
        == "emoji"
    )


def test_profile_by_path(tmp_path):
    file = tmp_path / "sharp.yaml"
    file.write_text("sampling: {temperature: 0.5}\n")
    resolved = resolve(str(file), environ={})
    assert (resolved.config.profile, resolved.config.sampling.temperature) == ("sharp", 0.5)
    assert "no profile file" in mistake(resolve, str(tmp_path / "gone.yaml"), environ={})


def test_unknown_profile_is_answered_with_a_near_one():
    assert mistake(find, "emojy", {}).startswith("unknown profile 'emojy' | did you mean emoji?")


def test_a_user_profile_hides_a_packaged_one(home):
    environ, folder = home
    (folder / "profiles" / "emoji.yaml").write_text("description: mine\n")
    assert {p.name: p.description for p in list_profiles(environ)}["emoji"] == "mine"


def test_every_packaged_profile_resolves():
    files = sorted(packaged_folder().glob("*.yaml"), key=lambda file: file.stem)
    assert [p.path for p in list_profiles({})] == files
    assert "emoji" in {file.stem for file in files}
    for file in files:
        config = resolve(file.stem, environ={}).config
        assert config.description, file
        assert config.model.licence, file


def test_preset_fills_in_structure_beneath_its_own_layer(home):
    environ, folder = home
    (folder / "profiles" / "mine.yaml").write_text(
        "decoder: {preset: sjdvp, init: repeat, window: 8, prediction: {rises: 2}}\n"
    )
    resolved = resolve("mine", environ=environ)
    decoder = resolved.config.decoder
    assert (decoder.drafter, decoder.init, decoder.prediction.kind) == (
        "independent",
        "repeat",
        "published",
    )
    assert (decoder.window, decoder.prediction.rises) == (8, 2)
    assert resolved.origins["decoder.drafter"] == "decoder sjdvp"
    assert resolved.origins["decoder.init"] == "profile mine"


def test_a_higher_preset_drops_lower_structure_and_keeps_parameters(home):
    environ, folder = home
    (folder / "profiles" / "mine.yaml").write_text(
        "decoder: {preset: sjdvp, init: repeat, drafter: gumbel, "
        "window: 8, prediction: {kind: published, rises: 2}}\n"
    )
    decoder = resolve("mine", {"decoder.preset": "coupled"}, environ).config.decoder
    assert (decoder.preset, decoder.drafter, decoder.init, decoder.prediction.kind) == (
        "coupled",
        "coupled",
        "above",
        "none",
    )
    assert (decoder.window, decoder.prediction.rises) == (8, 2)


def test_parameters_of_a_preset_count_only_where_no_layer_gives_them(home):
    environ, folder = home
    (folder / "profiles" / "mine.yaml").write_text("decoder: {relax: {distance: 2.5}}\n")
    relax = resolve("mine", {"decoder.preset": "gsd"}, environ).config.decoder.relax
    assert (relax.distance, relax.delta) == (2.5, PRESETS["gsd"]["relax"]["delta"])


def test_structure_given_beside_or_above_a_preset_wins(home):
    environ, _ = home
    environ["SJDVP_DECODER_PRESET"] = "coupled"
    given = resolve("emoji", {"decoder.init": "left"}, environ).config.decoder
    assert (given.drafter, given.init) == ("coupled", "left")
    beside = resolve(
        "emoji", {"decoder.preset": "sjd", "decoder.prediction.kind": "published"}, environ
    ).config.decoder
    assert (beside.drafter, beside.prediction.kind) == ("independent", "published")


def test_ar_means_window_1_and_jacobi_means_greedy():
    resolved = resolve("emoji", {"decoder.preset": "ar", "decoder.window": "16"}, {})
    assert resolved.config.decoder.window == 1
    assert resolved.notes == ("decoder ar means decoder.window 1; 16 is not used",)
    resolved = resolve("emoji", {"decoder.preset": "jacobi"}, {})
    assert (resolved.config.sampling.temperature, resolved.notes) == (0.0, ())


def test_leaving_ar_brings_the_window_back(home):
    environ, folder = home
    (folder / "config.yaml").write_text("decoder: {window: 24}\n")
    (folder / "profiles" / "mine.yaml").write_text("decoder: {preset: ar}\n")
    assert resolve("mine", environ=environ).config.decoder.window == 1
    assert resolve("mine", {"decoder.preset": "sjd"}, environ).config.decoder.window == 24


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_resolves(name):
    config = resolve("emoji", {"decoder.preset": name}, {}).config
    assert (config.decoder.preset, config.decoder.lossless) == (
        name,
        config.decoder.verifier in ("rejection", "same-noise"),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sampling: {cfg_scale: 3}\nsampling: {top_k: 1}\n", ":2: key 'sampling' occurs twice"),
        ("sampling:\n  top_k: 1\n  top_k: 2\n", ":3: key 'top_k' occurs twice"),
        ("sampling: {cfg: 3}\n", "unknown key sampling.cfg"),
        ("samplin: {cfg_scale: 3}\n", "unknown key samplin"),
        ("sampling: 3\n", "sampling must be a section of keys, found 3"),
        (
            "sampling: {top_k: 012}\n",
            "sampling.top_k must be a whole number, found '012' (from profile bad)",
        ),
        (
            "run: {metadata: no}\n",
            "run.metadata must be true or false, found 'no' (from profile bad)",
        ),
        (
            "sampling: {temperature: -1}\n",
            "sampling.temperature must be 0 (greedy), or 0.001 or more, found -1.0",
        ),
        ("1: 2\n", "key 1 is not text"),
        ("- a\n", "expected sections and keys, found list"),
        ("a: [\n", ":2: "),
        ("run: !!python/name:os.system\n", "could not determine a constructor"),
        ("decoder: {preset: sdj}\n", "unknown decoder 'sdj' | did you mean 'sjd'?"),
    ],
)
def test_mistakes_in_a_file_name_the_place(tmp_path, text, words):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    assert words in mistake(resolve, str(file), environ={})


def test_scalars_follow_yaml_1_2(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(
        "a: 1e-5\nb: no\nc: 012\nd: 1:30\ne: ~\nf: TRUE\ng: 0\n"
        "h: -1.5\ni: 2026-01-02\nj: 0x10\nk: .5\nl: 1_000\nm:\n"
    )
    expected = {
        "a": 1e-5,
        "b": "no",
        "c": "012",
        "d": "1:30",
        "e": None,
        "f": True,
        "g": 0,
        "h": -1.5,
        "i": "2026-01-02",
    }
    assert load_mapping(file) == {**expected, "j": "0x10", "k": 0.5, "l": "1_000", "m": None}


def test_files_that_are_no_text(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_bytes(b"a: \xff\n")
    assert "not UTF-8 (byte 3)" in mistake(load_mapping, file)
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert load_mapping(file) == {"a": 1}
    assert "Is a directory" in mistake(load_mapping, tmp_path)


def test_old_names_in_a_profile_or_a_variable_lead_to_the_new_ones(tmp_path):
    file = tmp_path / "old.yaml"
    file.write_text("decoder: {prior: {kind: growth}}\n")
    assert "old.yaml: unknown key decoder.prior | it is now called decoder.prediction" in mistake(
        resolve, str(file), environ={}
    )
    words = mistake(resolve, environ={"SJDVP_DECODER_PRIOR_TOP_K": "3"})
    assert words.endswith("it is now called SJDVP_DECODER_PREDICTION_TOP_K")


def test_unknown_variable_is_an_error_and_an_empty_one_is_not_given():
    words = mistake(resolve, environ={"SJDVP_SAMPLING_CFGSCALE": "3"})
    assert words == "unknown key SJDVP_SAMPLING_CFGSCALE | did you mean SJDVP_SAMPLING_CFG_SCALE?"
    assert resolve(environ={"SJDVP_SAMPLING_TOP_K": ""}).origins["sampling.top_k"] == "built-in"


def test_a_mistake_names_where_it_was_given(home):
    environ, folder = home
    words = mistake(resolve, environ={"SJDVP_SAMPLING_CFG_SCALE": "x"})
    assert "sampling.cfg_scale must be a number, found 'x' (from SJDVP_SAMPLING_CFG_SCALE)" in words
    assert "found 'x' (from flag)" in mistake(
        resolve, overrides={"sampling.cfg_scale": "x"}, environ={}
    )
    assert "unknown profile 'nope' (from SJDVP_PROFILE) |" in mistake(
        resolve, environ={"SJDVP_PROFILE": "nope"}
    )
    (folder / "config.yaml").write_text("profile: nope\n")
    assert "unknown profile 'nope' (from user file) |" in mistake(resolve, environ=environ)
    assert "unknown profile 'other' |" in mistake(resolve, "other", environ=environ)


def test_two_settings_that_do_not_fit_are_both_named():
    words = mistake(
        resolve, overrides={"decoder.preset": "sjdvp", "decoder.prediction.rises": "9"}, environ={}
    )
    assert (
        "decoder.prediction.history must be at least decoder.prediction.rises (9), found 4 ("
        in words
    )
    assert "(decoder.prediction.history from built-in, decoder.prediction.rises from flag)" in words


def test_a_variable_of_another_kind_gets_no_suggestion():
    assert "did you mean" not in mistake(resolve, environ={"SJDVP_DEBUG": "1"})


def test_a_section_is_not_a_setting():
    assert "did you mean decoder.prediction.kind" in mistake(
        resolve, overrides={"decoder.prediction": "published"}, environ={}
    )
