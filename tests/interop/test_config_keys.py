"""Every key of config.json removed, changed, or written under its other name: the logits of transformers, or a refusal."""

import dataclasses
import json
import os
from itertools import combinations

import pytest
from tests.interop import tiny

from regard import load
from regard.errors import BadConfig, RegardError
from regard.interop._defaults import ALIASES, DEFAULTS, NO_EFFECT
from regard.interop.families import FAMILIES, UNSUPPORTED
from regard.interop.hf_config import FOREIGN

transformers = pytest.importorskip("transformers", reason="the oracle of these tests; pip install 'regard[interop]'")
MISSING = object()
REPLACED = ("max_window_layers", "no_rope_layer_interval")  # by lists with a value per layer
LENGTHS = ("segment_means_seq_len", "num_landmarks", "hash_seed")  # of texts that transformers can read, and of random numbers
ROPE = ["rope_theta", "rope_scaling", "partial_rotary_factor", "rotary_emb_base", "rotary_pct", "head_dim", "num_key_value_heads"]


def config_class(family):
    return transformers.CONFIG_MAPPING[family]


def test_defaults_are_those_of_transformers():
    common = {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}
    for family, written in DEFAULTS.items():
        found = {
            field.name: list(field.default) if isinstance(field.default, tuple) else field.default
            for field in dataclasses.fields(config_class(family))
            if field.name not in common | NO_EFFECT
        }
        assert written == found, family
        assert ALIASES.get(family, {}) == config_class(family).attribute_map, family
    assert set(DEFAULTS) >= {name for family in FAMILIES for name in family.model_types}


def test_no_real_family_is_taken_for_a_typing_error(tmp_path):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    known = {name for family in FAMILIES for name in family.model_types}
    for name in (*set(CONFIG_MAPPING_NAMES) - known, "berd", "mistrall"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
        with pytest.raises(RegardError, match="not supported") as caught:
            load(tmp_path)
        assert ("did you mean" in str(caught.value)) == (name in ("berd", "mistrall")), name
    assert not UNSUPPORTED & known


def others(value):
    """Values that the key might have instead."""
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int):
        return [value + 1, 0, None, "2"]
    if isinstance(value, float):
        return [value * 3 + 0.25, None]
    if isinstance(value, str):
        return ["relu", "gelu_new", "original_full", None]
    if isinstance(value, list):
        return [value[::-1], value[:1], 4]
    if isinstance(value, dict):
        return [
            {},
            None,
            {"rope_type": "linear", "factor": 2.0},
            {"rope_type": "yarn", "factor": 2.0},
            {"rope_type": "dynamic", "factor": 3.0},
            {"rope_type": "longrope", "short_factor": [1.5] * 3, "long_factor": [2.0] * 3},
            {"rope_theta": 77.0},
            "linear",
        ]
    return [7, True]


def in_turn(family, key, values):
    """The first of them, and of the rest all if few families have the key; else one, another for each family: they read it alike."""
    first, *rest = values
    having = [name for name in DEFAULTS if key in DEFAULTS[name]]
    if len(having) < 4 or family not in having or not rest:
        return values
    return [first, rest[having.index(family) % len(rest)]]


def variants(family, config):
    """Changes of a config.json: what each key may be instead, or nothing at all; and keys that it does not have."""
    ignored = {"architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "id2label", "label2id", "problem_type"}
    for key, value in config.items():
        if key not in ignored and key not in LENGTHS:
            yield from ({key: other} for other in (MISSING, *in_turn(family, key, others(value))))
    for tower in ("text_config", "vision_config"):
        for key, value in config.get(tower, {}).items():
            if key not in ignored:
                without = {name: each for name, each in config[tower].items() if name != key}
                yield from ({tower: without | other} for other in ({}, *({key: other} for other in others(value)), {"unheard_of": 3}))
                yield {f"{tower}_dict": without}
                yield {f"{tower}_dict": config[tower], tower: without}
    for alias, key in config_class(family).attribute_map.items():
        yield {alias: config[key]}  # both names
        yield {alias: config[key], key: MISSING}
        yield from ({alias: other} for other in others(config[key]))
    if "rope_parameters" in config:
        for scaling in ({"rope_type": "linear", "factor": 2.0}, {"type": "linear", "factor": 3.0, "rope_theta": 55.0}, {}, None):
            yield {"rope_scaling": scaling}
            yield {"rope_scaling": scaling, "rope_theta": 500.0}
            yield {"rope_scaling": scaling, "rope_theta": 500.0, "rope_parameters": MISSING}
        for key in ROPE:
            yield from ({key: other} for other in in_turn(family, "rope_parameters", [500.0, 0.5, 6, None]))
            yield from ({key: other, "rope_parameters": MISSING} for other in in_turn(family, "rope_parameters", [500.0, 0.5, 2]))
    foreign = {key: default for each in DEFAULTS.values() for key, default in each.items() if key not in config}
    yield {key: default or 3 for key, default in foreign.items() if key not in FOREIGN and key not in ALIASES.get(family, {})}
    yield from ({key: 3} for key in FOREIGN)


def pairs(family, config):
    """Two keys changed at once, with values that take turns: every eighth pair, from another one for each family; all with ALL_PAIRS=1."""
    values = {}
    for change in variants(family, config):
        if len(change) == 1:
            values.setdefault(next(iter(change)), []).extend(change.values())
    found = list(enumerate(combinations([key for key in values if key in config], 2)))
    step, first = (1, 0) if os.environ.get("ALL_PAIRS") else (8, list(tiny.FAMILIES).index(family) % 8)
    for n, (one, two) in found[first::step]:
        yield {one: values[one][n % len(values[one])], two: values[two][n % len(values[two])]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("changes", [variants, pairs], ids=["one", "two"])
def test_every_key(changes, family, tmp_path):
    from transformers.initialization import no_init_weights

    theirs = tiny.build(family)
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    written, state = json.loads(path.read_text()), theirs.state_dict()
    loaded = refused = 0
    for change in changes(family, written):
        config = {key: value for key, value in (written | change).items() if value is not MISSING}
        path.write_text(json.dumps(config))
        try:
            mine = load(tmp_path)
        except RegardError:
            refused += 1
            continue
        loaded += 1
        try:
            with no_init_weights():  # all of them are loaded
                other = type(theirs)(transformers.AutoConfig.from_pretrained(tmp_path)).eval()
            other.load_state_dict(state)
            expected, found = tiny.both(family, other, mine)
        except Exception:  # transformers cannot compute it, so there is nothing to compare
            continue
        assert (found - expected).abs().max() <= 1e-5, change
    assert changes is pairs or (loaded >= 20 and refused >= 20)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_logits_and_every_tensor_back(family, tmp_path):
    from safetensors.torch import load_file

    from regard.interop import export

    theirs = tiny.build(family)
    theirs.save_pretrained(tmp_path / "theirs")
    mine = load(tmp_path / "theirs")
    expected, found = tiny.both(family, theirs, mine)
    assert (found - expected).abs().max() <= 1e-5
    export(mine, tmp_path / "mine")
    again = type(theirs).from_pretrained(tmp_path / "mine").eval()
    assert tiny.both(family, again, mine)[0].equal(expected)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "mine"))
    unused = {"lm_head.bias"} if family == "reformer" else set()
    assert before.keys() == after.keys() and all(x.equal(after[name]) for name, x in before.items() if name not in unused)
    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "mine"))
    first, second = (config_class(family)(**{k: v for k, v in config.items() if k != "model_type"}) for config in (first, second))
    for key in DEFAULTS[family]:
        if not key.endswith("_token_id"):
            assert key in REPLACED or getattr(first, key) == getattr(second, key), key


@pytest.mark.parametrize("key", ["attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"])
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_cap_of_nothing_is_refused(key, value, tmp_path):
    """transformers divides by it: its scores are then NaN, or zero."""
    tiny.build("gemma2").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(BadConfig, match=rf"{key}={value}; expected a (number above 0|value like 256)"):
        load(tmp_path)
