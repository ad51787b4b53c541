"""Recipes of graph networks: the generated dictionaries, and that each variant runs."""

import json
from dataclasses import replace

from regard.recipes import gat2018, run


def test_dictionaries_are_solved_by_looking_up(tmp_path):
    for line in gat2018.write_dictionaries(tmp_path / "d.jsonl", 3).read_text().splitlines()[:20]:
        one = json.loads(line)
        value_of = {}
        for node in one["nodes"][gat2018.KEYS :]:
            key, value = sorted(node)
            value_of[key.split()[1]] = value.split()[1]
        asked = [next(iter(node)).split()[1] for node in one["nodes"][: gat2018.KEYS]]
        assert [value_of[key] for key in asked] == one["labels"][: gat2018.KEYS] and one["labels"][gat2018.KEYS :] == [None] * gat2018.KEYS
        assert len(set(value_of.values())) == gat2018.KEYS


def test_graph_networks_run(tmp_path, monkeypatch):
    monkeypatch.setattr(gat2018, "LOOKUPS", 30)
    short = {name: replace(v, train=v.train.replace(steps=2, evaluate_every=1)) for name, v in gat2018.recipe.variants.items()}
    outcome = run(replace(gat2018.recipe, variants=short, rates=()), tmp_path, (0,), log=lambda line: None)
    found = outcome.results.metrics
    assert {"accuracy", "distance"} <= found["16 layers"][0].keys() and not outcome.held
    assert found["GAT"][0]["parameters"] == found["no graph"][0]["parameters"] > found["uniform weights"][0]["parameters"]
