"""Random mutants: what the operators offer, how a draw is made, what is reached, how the figure is reckoned."""

import ast
import builtins
import fnmatch
import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance.__main__ import main, parser
from conformance.bad_input import BadInput
from conformance.commands import power
from conformance.power import drawing, exploring, marks, measure, operators, triage, written
from conformance.power.drawing import Mutant, Pool
from conformance.power.operators import edits
from conformance.power.rate import ALL, rates, wilson
from conformance.power.reach import Mapped, Reach, Store
from conformance.power.triage import Judged, judged
from conformance.workers import Answered

from . import killing

SOURCE = '''"""Made up for a test."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import x

LIMIT = 3


class Box:
    """Holds."""

    first: int
    last: int
    label: str

    def fill(self, low: int, high: int, items: list) -> None:
        """Fill it."""
        if low < high and items:
            raise ValueError(f"{low} is not {high + 1}")
        self.count = 0
        for item in list(items):
            self.add(item, low, deep=True)
        with self.lock:
            self.total += self.first

    def __repr__(self):
        return "box" + str(self.count + 1)


def pairs(items):
    return zip(items, items, strict=True)


def reversed_of(items, times=2):
    return [each for each in sorted(items) if each is not None][0] * times
'''


def offered(source):
    """Every edit as (operator, changed text before, after)."""
    return [(edit.operator, source[edit.start : edit.end], edit.new) for edit in edits(source)]


@pytest.mark.parametrize("expected", [
    ("condition negated", "low < high and items", "not (low < high and items)"),
    ("condition forced", "low < high and items", "False"),
    ("bound shifted", " < ", " <= "),
    ("and/or swapped", " and ", " or "),
    ("operand dropped", "low < high and items", "(items)"),
    ("statement deleted", "self.count = 0", "pass"),
    ("copy left out", "list(items)", "items"),
    ("copy left out", "sorted(items)", "list(items)"),
    ("arguments swapped", "item, low", "low, item"),
    ("keyword dropped", ", deep=True", ""),
    ("truth inverted", "True", "False"),
    ("context left out", "with self.lock", "if True"),
    ("added taken for set", "self.total += self.first", "self.total = self.first"),
    ("attribute confused", "first", "last"),
    ("variable confused", "low", "high"),
    ("filter left out", "each is not None", "True"),
    ("comparison inverted", " is not ", " is "),
    ("ends confused", "0", "-1"),
    ("constant off by one", "2", "3"),
    ("constant off by one", "3", "2"),
    ("arithmetic", " * ", " // "),
])  # fmt: skip
def test_an_operator_offers_its_edit(expected):
    assert expected in offered(SOURCE)


def test_a_function_that_returns_nothing_may_return_too_early():
    edit = next(edit for edit in edits(SOURCE) if edit.operator == "early return")
    assert edit.applied(SOURCE).splitlines()[edit.line - 1] == "        return"


def test_what_is_raised_or_represented_and_what_is_only_for_types_is_left_alone():
    lines = {edit.line for edit in edits(SOURCE)}
    texts = ("raise ValueError", "import x", "TYPE_CHECKING:", "return \"box\"", "label: str", "strict")
    assert not any(text in SOURCE.splitlines()[line - 1] for line in lines for text in texts)


def test_every_edit_of_impl_that_is_drawn_leaves_another_program():
    drawn = list(itertools.islice(Pool.of_impl().draw(7), 40))
    assert len({(mutant.file, mutant.edit.line) for mutant in drawn}) == 40
    for mutant in drawn:
        assert ast.dump(ast.parse(mutant.mutated)) != ast.dump(ast.parse(mutant.source))
        assert mutant.diff


def test_an_edit_that_leaves_no_python_is_unsound():
    (edit, *_) = edits("x = f(1)\n")
    assert operators.is_sound(edit, "x = f(1)\n")
    assert not operators.is_sound(operators.Edit("made up", 0, 1, "x = (", 1, 1, ""), "x = f(1)\n")


def test_columns_count_bytes_and_offsets_count_characters():
    source = 'def f(n):\n    return len("×× ü") + n\n'
    assert ("arithmetic", " + ", " - ") in offered(source)


def test_a_draw_depends_on_the_seed_alone_and_a_larger_one_begins_with_the_smaller():
    pool = Pool({"impl/made_up.py": SOURCE})
    few, many = ([m.id for m in itertools.islice(pool.draw(5), n)] for n in (3, 9))
    assert many[:3] == few
    assert many != [mutant.id for mutant in itertools.islice(pool.draw(6), 9)]


def test_a_mutant_is_found_again_by_its_identity_and_belongs_to_a_package():
    pool = Pool({"impl/ddp/hooks/made_up.py": SOURCE})
    mutant = next(pool.draw(1))
    assert pool.named(mutant.id) == mutant
    assert (mutant.part, pool.named("impl/ddp/hooks/made_up.py:Box.fill:no such:1")) == ("hooks", None)


def test_the_sources_are_those_of_impl_without_its_tests():
    files = set(drawing.read())
    assert "impl/join/session.py" in files
    assert not any("tests" in file for file in files)


def test_marks_say_which_statements_ran(tmp_path):
    sources = {"impl/made_up.py": SOURCE}
    numbers = marks.places(sources)
    taken = marks.Map(tmp_path / "marks", len(numbers), new=True)
    taken.install()
    try:
        space = {}
        exec(marks.marked(sources)["impl/made_up.py"], space)
        assert space["reversed_of"]([2, 1]) == 2
        made = [numbers[number] for number in taken.taken()]
        lines = [SOURCE.splitlines()[place.line - 1].strip() for place in made if not place.condition]
        assert lines == ["return [each for each in sorted(items) if each is not None][0] * times"]
        assert [place.way for place in made if place.condition] == ["'each is not None' is True"]
        assert taken.taken() == []
    finally:
        delattr(builtins, marks.NAME)


@pytest.mark.parametrize("cache", ["@cache", "@lru_cache(maxsize=2)", "@functools.lru_cache(maxsize=2)"])
def test_each_case_executes_what_another_has_left_in_a_cache(tmp_path, cache):
    source = f"import functools\nfrom functools import cache, lru_cache\n\n{cache}\ndef twice(x):\n    return 2 * x\n"
    numbers = marks.places({"impl/made_up.py": source})
    taken = marks.Map(tmp_path / "marks", len(numbers), new=True)
    taken.install()
    try:
        space = {}
        exec(marks.marked({"impl/made_up.py": source})["impl/made_up.py"], space)
        for _case in range(2):
            assert space["twice"](4) == 8
            assert len(taken.taken()) == 1
    finally:
        delattr(builtins, marks.NAME)


def reach_of(**cases):
    """A map in which each case executes the statements on these lines of SOURCE, and takes so many seconds."""
    sources = {"impl/made_up.py": SOURCE}
    numbers = {(at.line, at.way): number for number, at in enumerate(marks.places(sources))}
    mapped = [
        Mapped(name, outcome, seconds, frozenset(numbers[line_of(text), way] for text, way in map(split, texts)))
        for name, (outcome, seconds, *texts) in cases.items()
    ]
    return Reach(sources, mapped)


def split(text):
    """A statement, or one with how its condition comes out behind a colon."""
    text, _, way = text.partition(": ")
    return text, way


def line_of(text):
    return next(at for at, line in enumerate(SOURCE.splitlines(), 1) if text in line)


def mutant_on(text):
    found = next(edit for edit in edits(SOURCE) if text in SOURCE.splitlines()[edit.line - 1])
    return Mutant("impl/made_up.py", found, SOURCE)


def test_a_mutant_meets_the_passing_checks_that_execute_its_statement_the_cheapest_first():
    reach = reach_of(
        slow=("passed", 3.0, "self.count = 0"), fast=("passed", 1.0, "self.count = 0"),
        broken=("failed", 0.1, "self.count = 0"), elsewhere=("passed", 0.1, "return [each"),
    )  # fmt: skip
    assert reach.cases(mutant_on("self.count = 0")) == ["fast", "slow"]
    assert [one.case for one in reach.useless] == ["broken"]


def test_a_default_is_reached_by_whatever_reaches_its_function_and_a_constant_by_what_names_it():
    reach = reach_of(inside=("passed", 1.0, "return [each"), beside=("passed", 1.0, "self.count = 0"))
    assert reach.cases(mutant_on("def reversed_of")) == ["inside"]
    assert reach.cases(mutant_on("LIMIT = 3")) == []


def test_the_statements_that_no_passing_case_executes_can_be_told():
    reach = reach_of(inside=("passed", 1.0, "return [each"), broken=("failed", 1.0, "self.count = 0"))
    texts = [SOURCE.splitlines()[place.line - 1].strip() for place in reach.unreached()]
    assert "self.count = 0" in texts
    assert not any(text.startswith(("return [each", "raise")) for text in texts)


def test_so_can_how_a_condition_never_came_out_but_of_none_that_nothing_asked_or_that_guards_an_error():
    reach = reach_of(inside=("passed", 1.0, "return [each", "return [each: 'each is not None' is True"))
    assert [place.way for place in reach.unreached() if place.way] == ["'each is not None' is False"]
    assert [place for place in reach_of(inside=("passed", 1.0, "return [each")).unreached() if place.way] == []
    conditions = "def f(a, b, c):\n    if not (a and b) or c:\n        return a or b\n    return [x for x in a if x]\n"
    guarded = "def g(a, b):\n    if a or b:\n        raise ValueError\n"
    found = marks.places({"impl/made_up.py": conditions + guarded})
    assert [place.condition for place in found if place.condition and place.comes_out] == ["a", "b", "c", "a", "x"]


def test_a_map_is_kept_and_a_line_that_was_cut_off_is_asked_for_again(tmp_path):
    store = Store(tmp_path, {"impl/made_up.py": SOURCE})
    one, other = Mapped("a", "passed", 0.5, frozenset({0, 9, 77})), Mapped("b", "passed", 1.0, frozenset())
    store.add(one)
    store.add(other)
    path = next(tmp_path.iterdir())
    path.write_text(path.read_text()[:-10])
    assert store.load() == {"a": one}


class FakeDriver:
    """Answers as if every mutant but those of some lines were killed."""

    def __init__(self, **ends):
        self.ends, self.asked = ends, []

    def as_answered(self, questions):
        for place, question in enumerate(questions):
            self.asked.append(json.loads(question)["mutant"])
            row = {"killed": True, "by": "check@2", "outcome": "failed", "witness": "w", "tried": 1, "seconds": 0.1}
            special = next((end for name, end in self.ends.items() if name in self.asked[-1].replace(" ", "_")), {})
            yield place, special if isinstance(special, Answered) else Answered({**row, **special})


def test_what_cannot_be_loaded_is_replaced_by_the_next_of_the_draw(tmp_path):
    reach = reach_of(all=("passed", 1.0, "self.count = 0", "return [each", "if low < high"))
    pool, ended = Pool({"impl/made_up.py": SOURCE}), measure.Ended(tmp_path / "ended.jsonl")
    driver = FakeDriver(reversed_of={"stillborn": "ImportError"})
    rows = list(measure.trials(driver, pool.draw(3), 7, reach, ended))
    ends = [row["end"] for row in rows]
    assert len(ends) - ends.count("stillborn") == 7
    assert {"stillborn", "killed", "not reached"} <= set(ends)
    again, kept = FakeDriver(), measure.Ended(tmp_path / "ended.jsonl")
    assert len(list(measure.trials(again, pool.draw(3), 7, reach, kept))) == len(rows)
    assert again.asked == []


def test_a_worker_that_died_is_no_kill_and_its_mutant_is_tried_again(tmp_path):
    reach = reach_of(all=("passed", 1.0, "self.count = 0", "return [each", "if low < high"))
    pool, ended = Pool({"impl/made_up.py": SOURCE}), measure.Ended(tmp_path / "ended.jsonl")
    rows = list(measure.trials(FakeDriver(made_up=Answered({}, "it died")), pool.draw(3), 8, reach, ended))
    assert "trouble" in {row["end"] for row in rows}
    assert "trouble" not in {row["end"] for row in ended.values()}


def test_survivors_that_count_meet_faults_and_random_programs_and_die_of_them(tmp_path):
    met = []

    def explored(row):
        met.append(row["mutant"])
        killed = row["mutant"] == "a"
        return {"killed": killed, "by": exploring.PROGRAMS, "outcome": "failed", "witness": "3.0 and not 2.0"}

    ends = {"a": "survived", "b": "not reached", "c": "survived", "d": "killed"}
    rows = [{"mutant": name, "end": end} for name, end in ends.items()]
    ended = measure.Ended(tmp_path / "ended.jsonl")
    for _ in range(2):
        power._explore(rows, {"c": Judged(triage.PERFORMANCE, "why")}, explored, ended, 1.0)
        rows = list(map(ended.get, ends, rows))
    assert met == ["a", "b"]  # once each
    assert [row["end"] for row in rows] == ["killed", "not reached", "survived", "killed"]
    assert ended["a"]["by"] == exploring.PROGRAMS


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_what_survivors_meet_ends_with_the_measurement(tmp_path):
    begun, stands_in = tmp_path / "begun", tmp_path / "command"
    stands_in.write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 60\n")
    stands_in.chmod(0o755)
    program = (
        "import sys\nfrom conformance.power import exploring\n"
        f"sys.executable = {str(stands_in)!r}\nexploring._run('faults', [])"
    )
    mark = str(tmp_path)
    with subprocess.Popen([sys.executable, "-c", program], env={**os.environ, killing.MARK: mark}) as measuring:
        while not begun.exists():
            assert measuring.poll() is None
            time.sleep(0.05)
        measuring.kill()
    assert killing.alive(mark, 10.0) == {}


@pytest.mark.parametrize("by", [exploring.MATRIX, exploring.PROGRAMS])
@pytest.mark.parametrize(("fails_too", "expected"), [(True, False), (False, True)])
def test_what_fails_on_the_sound_implementation_too_kills_nothing(tmp_path, monkeypatch, by, fails_too, expected):
    cell = {"cell": "SIGKILL/first bucket/live/DDP", "told_s": 0.0, "seconds": 1.0, "why": "rank 1 has 3.0"}
    program = {"batch": 0, "new": [{"program": "{}", "text": "3.0 and not 2.0"}]}

    def run(command, env, **_):
        words = dict(itertools.pairwise(command))
        bad = bool(env[drawing.VARIABLE]) or fails_too
        if words["conformance"] == "faults":
            rows = [{**cell, "verdict": "wrong" if bad and by == exploring.MATRIX else "told"}]
            path = Path(words["--out"]) / "subject" / "faults.jsonl"
        else:
            rows, bad = [program], bad and by == exploring.PROGRAMS
            path = Path(words.get("--out", tmp_path)) / "explored.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{json.dumps(row)}\n" for row in [{"first": 1}, *rows]))
        return subprocess.CompletedProcess(command, int(bad), "", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(exploring, "executed", lambda which, _: frozenset({1} if which == by else ()))
    asked = exploring.Asked(1.0, 1, 1, tmp_path)
    found = exploring.explored("impl/x.py:f:early return:1", frozenset({1, 2}), asked)
    assert found.get("by") == (by if expected else None)
    assert found["killed"] is expected
    nowhere = exploring.explored("impl/x.py:f:early return:1", frozenset({2}), asked)
    assert not nowhere["killed"]
    assert "comes to it" in nowhere["witness"]


@pytest.mark.parametrize("words", [
    ("--mutants", "0"), ("--seed", "x"), ("--explore", "-1"), ("--mutant", "impl/no.py:f:early return:1"),
])  # fmt: skip
def test_bad_input_is_one_sentence(words, capsys):
    assert main(["power", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("ends", "status"), [(["trouble", "stillborn"], 4), (["killed", "trouble"], 0)])
def test_mutants_of_which_none_counts_give_no_figure(tmp_path, capsys, ends, status):
    facts = {"part": "ddp", "witness": "why", "by": "", "outcome": "", "tried": 0, "cases": 0, "seconds": 0.0}
    facts |= {"file": "x.py", "line": 1, "operator": "o", "diff": ""}
    rows = [{**facts, "mutant": end, "end": end} for end in ends]
    given = parser().parse_args(["power", "--out", str(tmp_path)])
    assert power._conclude(given, 1, rows, {}, tmp_path) == status
    assert ("nothing to kill of 0 mutants" in capsys.readouterr().out) == (status == 4)


def test_who_survives_only_some_of_its_cases_is_tried_again(tmp_path):
    sources = [f"case {number}" for number in range(5)]
    reach = reach_of(**dict.fromkeys(sources, ("passed", 1.0, "self.count = 0", "return [each")))
    pool, ended = Pool({"impl/made_up.py": SOURCE}), measure.Ended(tmp_path / "ended.jsonl")
    alive = {"killed": False, "tried": 2}
    rows = list(measure.trials(FakeDriver(made_up=alive), pool.draw(3), 8, reach, ended, most=2))
    assert any(row["end"] == "survived" for row in rows)
    assert not any(row["end"] == "survived" for row in ended.values())


@pytest.mark.parametrize(("hits", "trials", "low", "high"), [
    (0, 0, 0.0, 1.0), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (190, 200, 0.9104, 0.9726),
])  # fmt: skip
def test_the_interval_is_wilsons(hits, trials, low, high):
    assert wilson(hits, trials) == pytest.approx((low, high), abs=1e-4)


def test_the_rate_leaves_out_what_no_check_can_kill_and_counts_what_nobody_has_judged():
    ends = {"a": "killed", "b": "killed", "c": "survived", "d": "not reached", "e": "survived", "f": "stillborn"}
    rows = [{"mutant": name, "end": end, "part": "zero" if name == "b" else "ddp"} for name, end in ends.items()]
    rows[1]["witness"] = "rank 0 raised TypeError: 'str' object is not callable"
    entries = {"c": Judged(triage.EQUIVALENT, "why"), "d": Judged(triage.GAP, "why")}
    whole, ddp, zero = rates(rows, entries)
    assert (whole.part, ddp.part, zero.part) == (ALL, "ddp", "zero")
    assert (whole.drawn, whole.counted, whole.killed, whole.untriaged) == (5, 4, 2, 1)
    assert (whole.plain, whole.subtle) == (1, 1 / 3)
    assert (ddp.counted, ddp.killed, zero.value) == (3, 1, 1.0)


def test_the_triage_on_file_can_be_read_and_gives_a_reason_for_every_entry():
    assert all(entry.reason for entry in triage.load().values())


@pytest.mark.slow
def test_every_entry_of_the_triage_on_file_is_of_a_mutant_that_there_is():
    """Where code moves, an entry has to move along, lest it judge another mutant, or none."""
    pool = Pool.of_impl()
    there = {mutant.id for file in pool.sources for mutant in pool.of_file(file)}
    gone = [each for each in triage.load() if each not in there and not ("*" in each and fnmatch.filter(there, each))]
    assert gone == []


def test_an_entry_of_its_own_goes_before_a_pattern():
    entries = {"impl/x.py:*": Judged(triage.ACCELERATOR, "a"), "impl/x.py:f:early return:1": Judged(triage.GAP, "b")}
    assert judged("impl/x.py:f:early return:1", entries).kind == triage.GAP
    assert judged("impl/x.py:g:early return:1", entries).kind == triage.ACCELERATOR
    assert judged("impl/y.py:g:early return:1", entries).kind == triage.UNTRIAGED


@pytest.mark.parametrize(("text", "said"), [
    ('[harmless]\n"a" = "b"', "no class 'harmless'"),
    ('[gap]\n"a" = " "', "gives no reason"),
    ('[gap]\n"a*" = "b"', "judged by itself"),
    ('[gap]\n"a" = "b"\n[equivalent]\n"a" = "b"', "of two classes"),
    ("[gap", "cannot be read"),
    ('gap = "a"', "give a table"),
    ('[gap]\n"a" = 3', "gives no reason"),
])  # fmt: skip
def test_a_triage_that_says_too_little_is_refused(tmp_path, text, said):
    path = tmp_path / "triage.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=said):
        triage.load(path)


WRITTEN = """
[[mutant]]
id = "a box begins with one"
file = "impl/ddp/made_up.py"
before = "        self.count = 0\\n        for item"
after = "        self.count = 1\\n        for item"
why = "nobody counts"

[[mutant]]
id = "the limit"
file = "impl/ddp/made_up.py"
before = "LIMIT = 3"
after = "LIMIT = 4"

[[mutant]]
id = "no total"
file = "impl/ddp/made_up.py"
before = "deep=True)\\n        with self.lock:\\n            self.total += self.first"
after = "deep=True)"
"""


def test_mutants_may_be_written_by_hand(tmp_path):
    file, sources = tmp_path / "mine.toml", {"impl/ddp/made_up.py": SOURCE}
    file.write_text(WRITTEN)
    counted, limit, totals = written.load(file, sources)
    assert (counted.mutated, counted.part) == (SOURCE.replace("count = 0", "count = 1"), "ddp")
    assert counted.id.startswith("impl/ddp/made_up.py:Box.fill:a box begins with one:")
    lines = SOURCE.splitlines()
    statements = [lines[each.edit.statement - 1].strip() for each in (counted, limit, totals)]
    assert statements == ["self.count = 0", "LIMIT = 3", "with self.lock:"]
    assert written.named(f"{file}#the limit", sources) == limit
    assert written.named(f"{file}#another", sources) is None


def test_the_documented_example_of_a_written_mutant_is_one(tmp_path):
    blocks = (Path(__file__).parents[2] / "docs" / "power.md").read_text().split("```")
    (example,) = [block for block in blocks if "[[mutant]]" in block]
    (tmp_path / "mine.toml").write_text(example)
    (mutant,) = written.load(tmp_path / "mine.toml", Pool.of_impl().sources)
    assert mutant.edit.operator == "the divisor"


@pytest.mark.parametrize(("before", "after", "words"), [
    ("made_up.py", "no_such.py", "'impl/ddp/no_such.py' is no file of impl"),
    ("LIMIT = 3", "return", "`before` stands 3 times"),
    ("LIMIT = 4", "LIMIT =", "leaves no program"),
    ('after = "LIMIT = 4"', "", "needs id, file, before, after"),
    ("[[mutant]]", "[[mutants]]", "holds no mutant"),
    ('"', "", "cannot be read"),
])  # fmt: skip
def test_a_written_mutant_that_is_none_is_refused_by_name(tmp_path, before, after, words):
    file = tmp_path / "mine.toml"
    file.write_text(WRITTEN.replace(before, after))
    with pytest.raises(BadInput, match=re.escape(words)):
        written.load(file, {"impl/ddp/made_up.py": SOURCE})
