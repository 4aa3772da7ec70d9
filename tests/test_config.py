"""Recipes: every mistake is a ConfigError that names the key; what is right survives a round trip."""

import datetime
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import tomli_w
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.config import Config, DecodingConfig, Section, apply_overrides, load_config, parse_config
from nmt.errors import ConfigError

Figure = Callable[..., None]
CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.toml"))
BASE: dict[str, dict[str, Any]] = {"data": {"train": "corpus"}, "training": {"max_updates": 10}}
SECTIONS: dict[str, type[Section]] = {name: field.annotation for name, field in Config.model_fields.items()}


def recipe(**sections: dict[str, Any]) -> dict[str, Any]:
    return {name: {**BASE.get(name, {}), **sections.get(name, {})} for name in {*BASE, *sections}}


def mistake(**sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(recipe(**sections), where="test.toml")
    assert "test.toml" in str(caught.value)
    return str(caught.value)


# The fuzz of M8: (section, key, value) triples of which every one is wrong.


A_SOURCE = [
    *({}, {"prefix": 1}, {"prefix": "a", "tsv": "b"}, {"src": "a"}, {"prefx": "a"}),
    *({"prefix": "a", "weight": 0.0}, {"prefix": "a", "weight": 1001.0}, {"prefix": "a", "tag": "<a b>"}),
]
STRUCTURED: dict[str, list[Any]] = {
    "train": A_SOURCE,
    "valid": A_SOURCE,
    "domain_weights": [3, "a", ["a"], {"a": -1.0}, {"a": 1001.0}, {"a": "b"}, {"a": float("nan")}],
    "user_symbols": ["<a>", {"a": "b"}, [3], [""], ["a b"], ["▁a"], ["</s>"], ["<0x0A>"], ["a" * 65], ["\x1b"]],
}


def wrong_values(section: str, key: str) -> list[Any]:
    """Values that a key must refuse: of another type, not among its choices, or beyond its bounds."""
    field = SECTIONS[section].model_fields[key]
    types = {kind for kind in (field.annotation, *get_args(field.annotation)) if kind is not type(None)}
    date = datetime.date(2024, 2, 29)
    if key in ("compile", "equal_source_lengths"):
        return ["true", "", 1, 0, 1.5, ["auto"], date]
    if (section, key) == ("training", "tokens_per_batch"):
        return ["4096", "Auto", "", 1.5, True, [1], {"a": 1}, date, float("nan"), 15, -(10**6), 10_000_001]
    if bool in types:
        return ["true", 1, 0.0, [True], date]
    bounds: list[Any] = []
    for bound in field.metadata:
        match bound:
            case Ge(ge=value):
                bounds += [value - 1, value - 10**6]
            case Gt(gt=value):
                bounds += [value, value - 1.0]
            case Le(le=value):
                bounds += [value + 1, value * 1000]
            case Lt(lt=value):
                bounds += [value, value + 0.5]
    if int in types:
        return ["3", 1.5, True, [1], {"a": 1}, date, float("nan"), *bounds]
    if float in types:
        return ["0.5", True, [0.5], {"a": 0.5}, date, float("nan"), float("inf"), *bounds]
    if key in STRUCTURED:
        return [3, True, 1.5, date, *STRUCTURED[key]]
    return [3, True, 1.5, ["a"], {"a": "b"}, date] + (["no such choice", ""] if str not in types else [])


KEYS = [(section, key) for section, model in SECTIONS.items() for key in model.model_fields]
wrong_value = st.sampled_from(KEYS).flatmap(lambda at: st.tuples(*map(st.just, at), st.sampled_from(wrong_values(*at))))
unknown_key = st.tuples(
    st.sampled_from(list(SECTIONS)),
    st.text(st.characters(codec="utf-8"), min_size=1),
    st.sampled_from([1, "a", {}, []]),
).filter(lambda case: (case[0], case[1]) not in KEYS)
unknown_section = st.tuples(
    st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda name: name not in SECTIONS),
    st.just("key"),
    st.sampled_from([1, "a"]),
)


def is_named(section: str, key: str, value: Any, by: str = "tables", folder: Path = Path()) -> bool:
    """Whether the recipe with this one value is refused by a ConfigError that names section and key.

    Args: by: how the value is given: as parsed "tables", in a "file", or by "set", in a file below `folder`.
    """
    path = folder / "fuzz.toml"
    try:
        if by == "tables":
            parse_config(recipe(**{section: {key: value}}), where="fuzz")
        elif by == "file":
            path.write_text(tomli_w.dumps(recipe(**{section: {key: value}})), encoding="utf-8")
            load_config(path)
        else:
            path.write_text(tomli_w.dumps(recipe()), encoding="utf-8")
            text = tomli_w.dumps({"v": value}).removeprefix("v = ").strip()
            load_config(path, [f"{section}.{key}={text}"])
    except ConfigError as error:
        said = str(error).removeprefix(f"{path} with --set {section}.{key}=")  # which repeats what was given
        return f"[{section}]" in said and (key in said or section not in SECTIONS)
    return False


def test_every_wrong_key_or_value_is_named(tmp_path: Path, full: bool, figure: Figure) -> None:
    named: list[bool] = []
    count = 1000 if full else 150

    @settings(max_examples=count, deadline=None, database=None, derandomize=True)
    @given(st.one_of(wrong_value, unknown_key, unknown_section), st.sampled_from(["tables", "file", "set"]))
    def check(case: tuple[str, str, Any], by: str) -> None:
        if by == "set" and (not re.fullmatch(r"\w+", case[0] + case[1]) or isinstance(case[2], dict)):
            by = "file"  # a name with dots, spaces or = is another key there, and a table is written otherwise
        named.append(is_named(*case, by=by, folder=tmp_path))
        assert named[-1], (case, by)

    check()
    # The negative control: values that are right are not counted as named mistakes.
    right = [("training", "seed", 2), ("model", "dropout", 0.0), ("data", "dir", "/tmp"), ("data", "valid", "a.tsv")]
    assert not any(is_named(*case, by=by, folder=tmp_path) for case in right for by in ("tables", "file", "set"))
    figure("config_fuzz", f"{sum(named)} errors named of {len(named)}", "all", all(named) and len(named) >= count)


def test_every_wrong_value_of_every_key_is_named() -> None:
    cases = [(section, key, value) for section, key in KEYS for value in wrong_values(section, key)]
    assert len(cases) > 300
    assert [case for case in cases if not is_named(*case)] == []


def test_a_key_of_several_types_tells_what_is_allowed() -> None:
    allowed = "(allowed: 16 ≤ tokens_per_batch ≤ 10000000)"
    assert (
        "[training] tokens_per_batch = 3: " in (said := mistake(training={"tokens_per_batch": 3})) and allowed in said
    )
    assert "[training] tokens_per_batch = 'atuo': Input should be 'auto' or a number" in mistake(
        training={"tokens_per_batch": "atuo"}
    )
    assert "[training] compile = 'yes': Input should be 'auto', true or false" in mistake(training={"compile": "yes"})
    config = parse_config(recipe(training={"tokens_per_batch": "auto", "compile": True}), where="test")
    assert (config.training.tokens_per_batch, config.training.compile) == ("auto", True)
    assert parse_config(tomllib.loads(config.to_toml()), where="again") == config


@pytest.mark.parametrize(
    ("section", "key", "nearest"),
    [
        ("model", "d_modl", "d_model"),
        ("model", "heads", "num_heads"),
        ("training", "learning-rate", "learning_rate"),
        ("training", "max_update", "max_updates"),
        ("tokenizer", "vocabsize", "vocab_size"),
        ("validation", "patiance", "patience"),
        ("decoding", "beam", "beam_size"),
        ("data", "tgt_language", "tgt_lang"),
    ],
)
def test_unknown_key_names_the_nearest(section: str, key: str, nearest: str) -> None:
    assert f"[{section}] {key}: unknown key; did you mean {nearest}?" in mistake(**{section: {key: 1}})


@pytest.mark.parametrize(
    ("section", "nearest"), [("modle", "model"), ("tokeniser", "tokenizer"), ("train", "training")]
)
def test_unknown_section_names_the_nearest(section: str, nearest: str) -> None:
    assert f"[{section}]: unknown section; did you mean {nearest}?" in mistake(**{section: {}})


def test_unknown_key_far_from_all_lists_what_is_valid() -> None:
    message = mistake(decoding={"zzz": 1})
    assert f"valid here: {', '.join(DecodingConfig.model_fields)}." in message


def test_unknown_key_of_a_source_names_the_nearest() -> None:
    assert "train.prefx: unknown key; did you mean prefix?" in mistake(data={"train": [{"prefx": "a"}]})
    assert "valid.splt: unknown key; did you mean split?" in mistake(data={"valid": {"hf": "a", "splt": "test"}})


@pytest.mark.parametrize(
    ("section", "key", "value", "allowed"),
    [
        ("model", "num_encoder_layers", 0, "1 ≤ num_encoder_layers ≤ 128"),
        ("model", "dropout", 1.0, "0.0 ≤ dropout < 1.0"),
        ("training", "learning_rate", 0.0, "0.0 < learning_rate ≤ 10.0"),
        ("training", "max_updates", -1, "1 ≤ max_updates ≤ 100000000"),
        ("tokenizer", "character_coverage", 0.5, "0.98 ≤ character_coverage ≤ 1.0"),
        ("training", "seed", "one", "0 ≤ seed ≤ 2147483647"),
    ],
)
def test_wrong_value_gives_the_allowed_range(section: str, key: str, value: Any, allowed: str) -> None:
    message = mistake(**{section: {key: value}})
    assert f"[{section}] {key} = {value!r}" in message
    assert f"(allowed: {allowed})" in message


def test_wrong_choice_lists_the_choices() -> None:
    assert "'relu', 'gelu', 'silu' or 'swiglu'" in mistake(model={"activation": "tanh"})


def test_all_mistakes_are_reported_at_once() -> None:
    message = mistake(model={"dropout": 2.0, "d_modl": 3}, training={"seed": -1})
    assert "3 mistake(s)" in message
    assert "dropout" in message and "d_modl" in message and "seed" in message


@pytest.mark.parametrize(("d_model", "num_heads", "better"), [(512, 7, 8), (768, 5, 12), (500, 8, 10), (100, 3, 2)])
def test_heads_that_do_not_divide_suggest_64_a_head(d_model: int, num_heads: int, better: int) -> None:
    message = mistake(model={"d_model": d_model, "num_heads": num_heads})
    assert "64 a head" in message and f"num_heads = {better} gives {d_model // better}" in message
    parse_config(recipe(model={"d_model": d_model, "num_heads": better}), where="the suggestion")


def test_odd_d_model_is_refused() -> None:
    assert "must be even" in mistake(model={"d_model": 7, "num_heads": 7})


def test_tying_all_needs_one_vocabulary() -> None:
    message = mistake(tokenizer={"joint": False})
    assert "model.tied_embeddings" in message and "tokenizer.joint" in message
    assert "[]" not in message
    parse_config(recipe(tokenizer={"joint": False}, model={"tied_embeddings": "decoder"}), where="allowed")


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedule_with_an_end_needs_max_updates(schedule: str) -> None:
    tables = {"data": BASE["data"], "training": {"schedule": schedule, "max_epochs": 3}}
    with pytest.raises(ConfigError, match=f'schedule = "{schedule}" ends at max_updates'):
        parse_config(tables, where="test")
    parse_config({**tables, "training": {**tables["training"], "max_updates": 5}}, where="allowed")


def test_a_run_needs_an_end() -> None:
    with pytest.raises(ConfigError, match=r"\[training\].*max_updates, max_epochs or max_minutes"):
        parse_config({"data": BASE["data"], "training": {}}, where="test")
    for limit in ({"max_updates": 1}, {"max_epochs": 1}, {"max_minutes": 0.5}):
        parse_config({"data": BASE["data"], "training": limit}, where="allowed")


def test_no_more_checkpoints_are_averaged_than_kept() -> None:
    assert "average_count = 6" in mistake(training={"average_count": 6})
    assert "keep_best = 1" in mistake(training={"average": "best"})


def test_given_tokenizers_fit_joint() -> None:
    assert "tgt_model is for joint = false" in mistake(tokenizer={"src_model": "a", "tgt_model": "b"})
    untied = {"tied_embeddings": "none"}
    assert "both src_model and tgt_model" in mistake(tokenizer={"joint": False, "src_model": "a"}, model=untied)


def test_held_out_pairs_must_not_occur_twice() -> None:
    message = mistake(data={"remove_duplicates": False})
    assert "[data]" in message and "remove_duplicates = true" in message
    parse_config(recipe(data={"remove_duplicates": False, "valid": "dev"}), where="allowed")


def test_missing_sections_and_keys_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({}, where="empty.toml")
    assert "[data]: this section is missing" in str(caught.value)
    assert "[training]: this section is missing" in str(caught.value)
    with pytest.raises(ConfigError, match=r"\[data\] train: missing"):
        parse_config({**BASE, "data": {}}, where="test")


@pytest.mark.parametrize(
    ("train", "kinds"),
    [
        ("corpus", ["prefix"]),
        ("corpus.tsv", ["tsv"]),
        (["a", "b.tsv", {"src": "s", "tgt": "t"}, {"hf": "x/y"}], ["prefix", "tsv", "src", "hf"]),
        ({"prefix": "a"}, ["prefix"]),
    ],
)
def test_a_plain_string_is_a_source(train: Any, kinds: list[str]) -> None:
    sources = parse_config(recipe(data={"train": train}), where="test").data.train
    assert all(getattr(source, kind) is not None for source, kind in zip(sources, kinds, strict=True))


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("training.seed=2", ["training", "seed"], 2),
        (" training . seed = 2", ["training", "seed"], 2),
        ("training.learning_rate=1e-3", ["training", "learning_rate"], 1e-3),
        ("tokenizer.byte_fallback=false", ["tokenizer", "byte_fallback"], False),
        ('data.dir="/tmp/a b"', ["data", "dir"], "/tmp/a b"),
        ("data.dir=/tmp/a b", ["data", "dir"], "/tmp/a b"),
        ("data.dir=a=b", ["data", "dir"], "a=b"),
        ("tokenizer.type=unigram", ["tokenizer", "type"], "unigram"),
        ('data.train=["a", "b.tsv"]', ["data", "train"], ["a", "b.tsv"]),
        ('data.valid={hf = "x/y", split = "test"}', ["data", "valid"], {"hf": "x/y", "split": "test"}),
        ("data.valid.prefix=dev", ["data", "valid", "prefix"], "dev"),
    ],
)
def test_overrides_are_toml_or_strings(override: str, path: list[str], value: Any) -> None:
    tables: Any = recipe()
    apply_overrides(tables, [override])
    parse_config(tables, where="test")
    for key in path:
        tables = tables[key]
    assert tables == value


@pytest.mark.parametrize("override", ["", "seed=2", "=2", ".seed=2", "training.=2", "training.seed", "a..b=1"])
def test_bad_overrides_show_the_form(override: str) -> None:
    with pytest.raises(ConfigError, match=r"section\.key=value") as caught:
        apply_overrides(recipe(), [override])
    assert repr(override) in str(caught.value)


def test_override_below_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="'max_updates' is a value, not a table"):
        apply_overrides(recipe(), ["training.max_updates.x=1"])


def test_the_last_override_wins_and_mistakes_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text('[data]\ntrain = "a"\n[training]\nmax_updates = 5\n')
    assert load_config(path, ["training.seed=2", "training.seed=3"]).training.seed == 3
    with pytest.raises(
        ConfigError,
        match=r"my\.toml with --set training\.sede=2 has 1 mistake.*\n.*\[training\] sede: .*did you mean seed",
    ):
        load_config(path, ["training.sede=2"])


def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config .*missing\.toml"):
        load_config(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("[data\n")
    with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML.*line 1"):
        load_config(tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b'[data]\ntrain = "\xff"\n')
    with pytest.raises(ConfigError, match=r"latin\.toml is no text file"):
        load_config(tmp_path / "latin.toml")
    with pytest.raises(ConfigError, match="is no text file"):
        load_config(tmp_path)


@pytest.mark.parametrize("value", ["[" * 5000, "9" * 5000, "1\n[x]"])
def test_overrides_that_break_the_toml_reader_are_mistakes_of_their_key(value: str) -> None:
    tables = recipe()
    apply_overrides(tables, [f"training.seed={value}"])
    with pytest.raises(ConfigError, match="seed"):
        parse_config(tables, "a test")


@pytest.mark.parametrize("value", ["[" * 5000, "9" * 5000])
def test_a_file_that_breaks_the_toml_reader_is_refused(value: str, tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text(f"[training]\nseed = {value}\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(tmp_path / "deep.toml")


def reparse(config: Config) -> Config:
    return parse_config(tomllib.loads(config.to_toml()), where="the round trip")


@settings(max_examples=100, deadline=None)
@given(
    directory=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
    rate=st.floats(0.0, 10.0, exclude_min=True),
    minutes=st.none() | st.floats(0.01, 1e6),
    seed=st.integers(0, 2**31 - 1),
    train=st.lists(st.sampled_from(["a", "b.tsv", {"hf": "x/y", "name": "en-de"}]), min_size=1, max_size=3),
    duplicates=st.booleans(),
)
def test_round_trip_equals(
    directory: str, rate: float, minutes: float | None, seed: int, train: list[Any], duplicates: bool
) -> None:
    config = parse_config(
        recipe(
            data={"dir": directory, "train": train, "valid": "dev", "remove_duplicates": duplicates},
            training={"learning_rate": rate, "max_minutes": minutes, "seed": seed},
        ),
        where="test",
    )
    assert reparse(config) == config
    assert reparse(config.replace(training={"seed": 7})) != config or seed == 7


def test_replace_changes_only_what_is_named_and_checks_it() -> None:
    config = parse_config(recipe(), where="test")
    changed = config.replace(training={"seed": 9}, data={"dir": "x"})
    assert (changed.training.seed, changed.data.dir) == (9, "x")
    assert changed.replace(training={"seed": 1}, data={"dir": "."}) == config
    with pytest.raises(ConfigError, match=r"\[training\] seed"):
        config.replace(training={"seed": -1})


def test_config_is_frozen() -> None:
    config = parse_config(recipe(), where="test")
    with pytest.raises(ValueError, match="frozen"):
        config.training.seed = 2  # type: ignore[misc]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_recipes_load_and_round_trip(path: Path) -> None:
    config = load_config(path)
    assert reparse(config) == config


def test_there_are_shipped_recipes() -> None:
    assert "toy.toml" in [path.name for path in CONFIGS]


def test_replace_keeps_what_was_not_given_apart() -> None:
    config = parse_config({"data": {"train": "x"}, "training": {"max_updates": 1}, "model": {"d_ff": 64}}, "a test")
    assert config.replace(data={"dir": "y"}).model.model_fields_set == {"d_ff"}
