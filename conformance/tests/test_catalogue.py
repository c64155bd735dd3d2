"""The catalogue and the checks fit each other: no clause without a check, no check without a clause."""

import importlib
import pkgutil
from collections import Counter

import pytest

from conformance import checks as package
from conformance import clauses
from conformance.api.checking import Check
from conformance.clauses import anchors
from conformance.engine import inventory

CATALOGUE = clauses.load()
DECLARED = inventory.declared()
BY_CLAUSE = inventory.by_clause(DECLARED)


@pytest.mark.parametrize("area", [area for area in CATALOGUE.areas if area.complete], ids=lambda area: area.letter)
def test_every_testable_clause_of_a_complete_area_has_a_check(area):
    assert [clause.id for clause in area.clauses if clause.testable and clause.id not in BY_CLAUSE] == []


def test_every_clause_that_a_check_cites_is_in_the_catalogue():
    strangers = {clause: found[0].name for clause, found in BY_CLAUSE.items() if CATALOGUE.get(clause) is None}
    assert strangers == {}


def test_no_check_cites_an_untestable_clause():
    assert [c.id for c in CATALOGUE if not c.testable and c.id in BY_CLAUSE] == []


def test_every_anchor_is_still_in_the_documentation_of_the_installed_torch():
    assert anchors.stale(CATALOGUE) == {}


def test_names_of_checks_are_unique_because_records_and_deviations_name_them():
    assert [name for name, count in Counter(found.name for found in DECLARED).items() if count > 1] == []


def test_the_inventory_read_from_the_source_is_what_the_imported_checks_say():
    imported = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("test_"):
            loaded = importlib.import_module(f"conformance.checks.{module.name}")
            found = {name: value.check for name, value in vars(loaded).items() if _is_check_of(value, loaded)}
            imported |= {name: (about.clauses, tuple(about.scenarios)) for name, about in found.items()}
    read = {found.name: (found.clauses, found.scenarios) for found in DECLARED}
    literal = {name: about if read.get(name, ((), ()))[1] else (about[0], ()) for name, about in imported.items()}
    assert read == literal


def _is_check_of(value, module):
    return isinstance(getattr(value, "check", None), Check) and value.__module__ == module.__name__


CLAUSE = """
area = "Z"
title = "An area"
[[clause]]
id = "ZED-001"
level = "MUST"
title = "A title"
statement = "A statement."
source = "A source"
"""


def read(tmp_path, text):
    (tmp_path / "z.toml").write_text(text)
    return clauses.load(tmp_path)


def test_a_catalogue_is_read_as_written(tmp_path):
    catalogue = read(tmp_path, CLAUSE)
    assert [(c.id, c.kind, c.area, c.testable) for c in catalogue] == [("ZED-001", "MUST", "Z", True)]
    assert catalogue.level("ZED-001") == "MUST"
    assert catalogue.level("ZED-999") == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CLAUSE + "oops", "cannot be read as TOML"),
        (CLAUSE.replace('area = "Z"', ""), "area must be a non-empty text"),
        ("colour = 1\n" + CLAUSE, "unknown key 'colour'"),
        ('complete = "yes"\n' + CLAUSE, "complete must be true or false"),
        (CLAUSE.replace('title = "A title"', ""), r"clause 1 \(ZED-001\): title must be"),
        (CLAUSE + 'colour = "red"\n', r"ZED-001\): unknown key 'colour'"),
        (CLAUSE.replace("ZED-001", "zed1"), "an id is capitals"),
        (CLAUSE.replace('"MUST"', '"SHOULD"'), "level 'SHOULD' is none of"),
        (CLAUSE.replace('"MUST"', '"RAISES"'), "RAISES needs error"),
        (CLAUSE + 'error = "ValueError"\n', "error is only for RAISES"),
        (CLAUSE + "testable = false\n", "needs a reason"),
        (CLAUSE + 'reason = "why not"\n', "testable is not false"),
        (CLAUSE + 'testable = "no"\n', "testable must be true or false"),
        (CLAUSE + 'anchor = "a phrase"\n', "anchor needs anchor_in"),
        (CLAUSE + CLAUSE[CLAUSE.index("[[") :], "an id is given once"),
        ('area = "Z"\ntitle = "t"\nclause = 3\n', r"written as \[\[clause\]\] tables"),
    ],
)
def test_a_mistake_in_a_catalogue_is_named(tmp_path, text, words):
    with pytest.raises(clauses.CatalogueError, match=words):
        read(tmp_path, text)


def anchored(phrase, where, since=""):
    return clauses.Clause("ZED-001", "MUST", "t", "s", "s", "Z", anchor=phrase, anchor_in=where, since=since)


@pytest.mark.parametrize(
    ("phrase", "where", "words"),
    [
        ("a phrase nobody wrote", "torch.distributed.algorithms.join.Join", "no longer says"),
        ("anything", "torch.distributed.algorithms.join.Joyn", "is gone"),
        ("anything", "no_such_package.thing", "is gone"),
    ],
)
def test_a_stale_anchor_is_noticed(phrase, where, words):
    assert words in anchors.fault(anchored(phrase, where))


@pytest.mark.parametrize(("installed", "missed"), [("2.12.1", []), ("2.13.0+cpu", ["ZED-001"]), ("2.14", ["ZED-001"])])
def test_an_anchor_is_missed_only_from_the_release_on_that_brought_it(installed, missed):
    promised = anchored("a phrase nobody wrote", "torch.distributed.algorithms.join.Join", since="2.13")
    assert list(anchors.stale([promised], installed)) == missed


@pytest.mark.parametrize(
    "where",
    [
        "torch.nn.parallel.DistributedDataParallel.join",  # moved by an import in __init__
        "torch.distributed.all_reduce",  # moved by a star import: only the imported module knows
        "torch.nn.parallel.distributed.DistributedDataParallel",  # a class where it is defined
    ],
)
def test_a_docstring_is_found_wherever_its_object_lives(where):
    assert len(anchors.docstring(where)) > 100
