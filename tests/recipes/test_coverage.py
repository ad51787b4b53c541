"""Every mechanism and every model is named by a claim, or is a reimplementation whose equality with public code is tested."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.interop import tiny

from regard.attention import LocalAttention, SoftmaxAttention, mechanisms
from regard.interop.families import FAMILIES
from regard.models import models
from regard.recipes import RECIPES, Recipe, RecipeFacts, above, graves2013, lowrank2021, memory2020, mixers2021
from regard.recipes._engine.coverage import ORACLE, REIMPLEMENTED, named, names_of
from regard.recipes._engine.puzzles import Lag
from regard.recipes._engine.stacks import Heads, StackVariant, puzzle_training
from regard.recipes._engine.variants import TranslationMetrics, TranslationVariant
from regard.tasks import TranslationOptions

NAMED = named(RECIPES)


@pytest.mark.parametrize("name", mechanisms())
def test_a_claim_names_every_mechanism(name):
    assert name in NAMED, f"no claim is about a variant with {name}: add one to a recipe"


@pytest.mark.parametrize("name", models())
def test_a_claim_names_every_model_or_it_is_a_reimplementation(name):
    assert (name in NAMED) != (name in REIMPLEMENTED), f"{name}: expected a claim, or a line in REIMPLEMENTED, and not both"


@pytest.mark.parametrize(("name", "model_type"), REIMPLEMENTED.items())
def test_reimplementations_are_compared_with_transformers(name, model_type):
    path, _, function = ORACLE.partition("::")
    text = (Path(__file__).parents[2] / path).read_text(encoding="utf-8")
    assert f'@pytest.mark.parametrize("family", tiny.FAMILIES)\ndef {function}(' in text and model_type in tiny.FAMILIES
    (family,) = [family for family in FAMILIES if model_type in family.model_types]
    assert family.model == name


def small(**variants) -> Recipe:
    facts = RecipeFacts("small", 2017, "title", "none", "no time")
    return Recipe(facts=facts, question="?", variants=variants, claims=(above("a is above b", "a", "b"),))


def test_only_variants_that_a_claim_is_about_count():
    puzzle, train = Lag(), puzzle_training(2)
    local = StackVariant(puzzle=puzzle, mixer=Heads(attention=partial(LocalAttention, 4)), train=train)
    soft = StackVariant(puzzle=puzzle, mixer=Heads(attention=SoftmaxAttention), train=train)
    assert names_of(small(a=soft, b=soft, c=local)) == {"softmax"} and names_of(small(a=soft, b=local)) == {"softmax", "local"}


def test_models_and_the_mechanisms_in_their_settings_are_found():
    options = TranslationOptions(data="copy:2-5", tokenizer="word")
    variant = TranslationVariant(
        options=options, train=puzzle_training(2), model="luong", settings={"attention": "location"}, evaluate=TranslationMetrics()
    )
    assert names_of(small(a=variant, b=replace(variant, settings={"attention": "dot"}))) == {"luong", "location", "dot"}


def test_classes_in_the_code_of_a_recipe_are_found():
    assert {"nystrom", "linformer"} <= names_of(lowrank2021.recipe) and names_of(memory2020.recipe) == {"softmax"}
    assert names_of(graves2013.recipe) == {"handwriting", "gaussian_window"}
    assert "random_synthesizer" in names_of(mixers2021.recipe)
