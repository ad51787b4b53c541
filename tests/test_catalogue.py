"""The catalogue is derived: whatever is in the lists is in it, under its own name."""

import json

import pytest

from regard import MECHANISMS, catalogue
from regard.cli import main
from regard.errors import UnknownName


def test_every_mechanism_is_there_once_and_oldest_first():
    named = catalogue.mechanisms()
    assert tuple(named.values()) == MECHANISMS, "two mechanisms share a name"
    years = [mechanism.facts.paper.year for mechanism in MECHANISMS]
    assert years == sorted(years)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.facts.name)
def test_found_by_name_and_by_class(mechanism):
    assert catalogue.find(mechanism.facts.name) is mechanism
    assert catalogue.find(mechanism.__name__) is mechanism
    assert catalogue.find(mechanism.facts.name.upper().replace("_", "-")) is mechanism


def test_a_typo_names_the_nearest():
    with pytest.raises(UnknownName, match="'softmax'"):
        catalogue.find("sofmax")
    with pytest.raises(UnknownName, match="known: "):
        catalogue.find("zzzzzz")


@pytest.mark.parametrize("kind", ["mechanisms", "models", "recipes"])
def test_rows_are_plain(kind):
    rows = catalogue.rows(kind)
    assert json.loads(json.dumps(rows)) == rows
    assert [row["name"] for row in rows] == list(catalogue.listed(kind))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.facts.name)
def test_docstrings_say_what_a_reader_needs(mechanism):
    said = catalogue.notes(mechanism)
    assert {"Cost", "Use it", "Limits", "Paper"} <= set(said), f"{mechanism.__name__} says only {sorted(said)}"
    assert next(row for row in catalogue.rows() if row["class"] == mechanism.__name__)["summary"]


def test_notes_join_lines_that_go_on():
    class Said:
        """One sentence.

        Cost:    little,
                 in two lines.
        Use it:  often: there is a colon here.

        Something else that is not a note.
        """

    assert catalogue.notes(Said) == {"Cost": "little, in two lines.", "Use it": "often: there is a colon here."}


def test_a_well_known_system_that_is_not_here_is_called_so(capsys):
    """Not by a name that is spelled alike; the names that are suggested exist."""
    known = {row["name"] for kind in catalogue.KINDS for row in catalogue.rows(kind)}
    assert {name for _, nearest in catalogue.ABSENT.values() for name in nearest} <= known
    missing = next(name for name in catalogue.ABSENT if name not in known)
    with pytest.raises(UnknownName, match="regard does not have"):
        catalogue.find(missing)
    assert catalogue.absent("Slot-Attention") == catalogue.absent("slot attention") != ""
    assert "set_transformer" in catalogue.absent("DeepSets") and catalogue.absent("sofmax") == ""
    assert main(["show", "slot-attention"]) == 2
    error = capsys.readouterr().err
    assert "regard does not have slot attention; the nearest that it has: regard show set_transformer" in error and error.count("\n") == 1
