"""Planted defects: each is well declared and can be planted, some are trial result, and what does no harm survives."""

import dis
import functools
import inspect
import os
import re
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from conformance import clauses
from conformance.bad_input import BadInput
from conformance.commands.defects import ensure_known
from conformance.defects import catalogue, planted, planting
from conformance.defects.planting import PlantError
from conformance.engine import inventory

from .test_runs_whole import marked, needs_proc, wait_for

pytestmark = pytest.mark.slow

HOME = Path(__file__).parents[2]
DEFECTS = catalogue.load()
CATALOGUE = clauses.load()
#: one or two of each area, trial result in every run of the tests; `make defects` trials all
SUBSET = (
    "join/error_of_the_body_is_wrapped", "ddp_join/final_model_is_that_of_rank_0", "ddp/unused_everywhere_gets_zeros",
    "comm/any_future_accepted", "overlap/all_groups_have_the_settings_of_the_first",
    "zero/joined_rank_steps_with_its_old_gradients",
)  # fmt: skip

HARMLESS = '''"""Made up for a test."""

from conformance.defects.planting import defect, edit


@defect("DDP-044", "DDP-049")
def NAME():
    """Nothing is wrong here."""
    edit("before = self.require", "before = True and self.require", within="no_sync")
'''
_HARMLESS_EDIT = '"before = self.require", "before = True and self.require", within="no_sync"'
HARMFUL = HARMLESS.replace(_HARMLESS_EDIT, "LABEL, OTHER")
HARMFUL = HARMFUL.replace("LABEL", "'\"DistributedDataParallel.forward\"'").replace("OTHER", "'\"DDP.forward\"'")
MISNAMED = HARMLESS.replace('"before = self.require"', '"behind = self.require"')
CLUMSY = HARMFUL.replace("'\"DDP.forward\"'", '"no_such_name"').replace(', "DDP-049"', "")


def test_every_defect_names_clauses_that_checks_decide():
    assert len(DEFECTS) >= 150
    ensure_known(DEFECTS, CATALOGUE, inventory.CHECKS)


def test_no_two_defects_say_the_same():
    sentences = [f"{defect.area}: {defect.sentence}" for defect in DEFECTS]
    assert sorted(set(sentences)) == sorted(sentences)


@functools.cache
def known_to(kind):
    """The attributes of a class: those that it and its relatives have, and those that their code speaks of."""
    below, spoken = [kind], set()
    for each in below:
        below += each.__subclasses__()
    relatives = {*kind.__mro__, *below} - {object}
    for each in relatives:
        spoken |= set(getattr(each, "__annotations__", ()))
        with suppress(OSError, TypeError):  # written in C
            spoken |= set(re.findall(r"\bself\.(\w+)", inspect.getsource(each)))
    return spoken.union(*map(dir, relatives))


def asked_in_vain():
    """What planted methods ask of their object that it does not have: an AttributeError is not the mistake."""
    changed = [(owner, vars(owner).get(name)) for owner, name, _ in planting._undo if isinstance(owner, type)]
    changed = [(owner, getattr(raw, "fget", None) or getattr(raw, "func", raw)) for owner, raw in changed]
    methods = [(owner, inspect.unwrap(method)) for owner, method in changed if inspect.isfunction(method)]
    made = {const for _, method in methods for const in method.__code__.co_consts if isinstance(const, str)}
    asked = set()
    for owner, method in methods:
        first, *_ = method.__code__.co_varnames or ("",)
        for before, after in pairwise(dis.get_instructions(method)):
            if before.argval != first:
                continue
            if after.opname == "STORE_ATTR":
                made.add(after.argval)
            elif after.opname in ("LOAD_ATTR", "LOAD_METHOD") and after.argval not in known_to(owner):
                asked.add(after.argval)
    return asked - made


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.id)
def test_every_defect_can_be_planted_and_taken_out_again(defect):
    try:
        assert planted.subject(defect.attribute).name == defect.id
        assert planting.changed()
        assert asked_in_vain() == set()
    finally:
        planted.clear()
    assert not planting.changed()


def lay(folder, **defects):
    """A folder of defects made up for a test."""
    (folder / "ddp").mkdir()
    for name, text in defects.items():
        (folder / "ddp" / f"in_{name}.py").write_text(text.replace("NAME", name))
    return folder


BROKEN_CHECK = """
from conformance.api.checking import check


def look(ctx):
    return None.nothing


@check("DDP-044", "DDP-049", worlds=(1,))
def test_that_falls_over(ranks):
    ranks(look)
"""


def trial(*words):
    """``python -m conformance defects``: exit status, standard output, standard error."""
    command = [sys.executable, "-m", "conformance", "defects", *map(str, words)]
    done = subprocess.run(command, cwd=HOME, env={**os.environ}, capture_output=True, text=True, timeout=900)
    return done.returncode, done.stdout, done.stderr


def test_the_suite_catches_one_of_each_area():
    status, out, err = trial("--select", ",".join(SUBSET))
    assert status == 0, out + err
    assert out.splitlines()[-1] == f"{len(SUBSET)} killed, 0 survived"
    for defect in DEFECTS:
        if defect.id in SUBSET:
            assert all(clause in out for clause in defect.clauses)


@pytest.mark.long
def test_what_is_harmless_survives_and_what_cannot_be_planted_is_no_kill(tmp_path):
    folder = lay(tmp_path, a_harmful=HARMFUL, a_harmless=HARMLESS, a_misnamed=MISNAMED, b_clumsy=CLUMSY)
    status, out, err = trial("--defects", folder, "--jobs", "1")
    assert status == 1, out + err
    rows = [line.split() for line in out.splitlines()]
    assert ["ddp/a_harmful", "DDP-044", "killed"] in [row[:3] for row in rows]
    assert ["ddp/a_harmless", "DDP-044", "SURVIVED"] in [row[:3] for row in rows]
    assert "ddp/a_harmful: not caught by DDP-049" in out
    assert "ddp/a_harmless: not caught by DDP-044, DDP-049" in out
    assert "0 functions of impl hold what the defect changes within no_sync" in out
    assert "ddp/b_clumsy: not caught by DDP-044\n" in out  # a NameError of the defect's own proves nothing
    assert out.splitlines()[-1] == "0 killed, 3 survived, 1 could not be tried"


def test_a_defect_that_is_there_twice_is_told(tmp_path):
    folder = lay(tmp_path, a_harmless=HARMLESS, b_harmless=HARMLESS, c_harmful=HARMFUL)
    status, out, err = trial("--defects", folder, "--try")
    assert status == 1, err
    assert "ddp/b_harmless: it changes the same as ddp/a_harmless" in out
    assert out.splitlines()[-1] == "2 of 3 defects have their place"


@pytest.mark.long
@pytest.mark.parametrize(
    ("where", "why"),
    [("ranks(look)", " falls over without the defect, too"), ("look(None)", ": the check itself fell over")],
)
def test_a_check_that_falls_over_by_itself_decides_nothing(tmp_path, where, why):
    folder, checks = lay(tmp_path, a_harmless=HARMLESS), tmp_path / "checks"
    checks.mkdir()
    (checks / "test_broken.py").write_text(BROKEN_CHECK.replace("ranks(look)", where))
    status, out, err = trial("--defects", folder, "--checks", checks, "--select", "ddp/a_harmless", "--jobs", "1")
    assert status == 1, out + err
    assert f"ddp/a_harmless: test_that_falls_over@1{why}" in out
    assert out.splitlines()[-1] == "0 killed, 0 survived, 1 could not be tried"


@pytest.mark.long
@needs_proc
def test_an_interrupted_trial_leaves_no_process():
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "conformance", "defects", "--jobs", "1", "--select", "ddp/*"]
    environment = {**os.environ, "JOINERY_TEST_MARK": mark}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=HOME, env=environment, **pipes)
    try:
        assert "ddp/" in process.stdout.readline()  # the first row: ranks are at work
        assert len(marked(mark)) > 1
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "interrupted after" in err
    wait_for(lambda: marked(mark) == [], 60)


@pytest.mark.parametrize(("words", "said"), [
    (("--select", "nowhere/*"), "'nowhere/*' matches no planted defect"),
    (("--jobs", "0"), "number of jobs '0'"),
    (("--defects", "no/such/folder"), "there is no folder of defects at no/such/folder"),
])  # fmt: skip
def test_bad_input_is_one_sentence_and_status_2(words, said):
    status, out, err = trial(*words)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("text", "said"), [
    ("@defect('DDP-049')\ndef wrong(): ...", "does not say its mistake"),
    ("@defect(CLAUSES)\ndef wrong():\n  'A mistake.'", "needs @defect"),
    ("@defect('DDP-049', worlds=('2',))\ndef wrong():\n  'A mistake.'", "worlds must be"),
    ("@defect(", "is no Python"),
])  # fmt: skip
def test_a_file_that_declares_itself_badly_is_refused(tmp_path, text, said):
    with pytest.raises(BadInput, match=said):
        catalogue.load(lay(tmp_path, wrong=text))


def test_a_defect_of_an_unknown_clause_is_refused(tmp_path):
    known = catalogue.load(lay(tmp_path, wrong=HARMLESS.replace("DDP-049", "DDP-999")))
    with pytest.raises(BadInput, match="names DDP-999, but there is no such clause"):
        ensure_known(known, CATALOGUE, inventory.CHECKS)


class Shelter:
    """Something to plant in."""

    def of(self, number):
        if number < 3:
            return "few"
        return "many"

    @staticmethod
    def fixed():
        return 1

    @property
    def told(self):
        return "right"


class Lean(Shelter):
    """Something that inherits."""

    def of(self, number):
        return super().of(number).upper()


def test_planting_changes_what_it_says_and_nothing_afterwards():
    try:
        right = planting.swap(Shelter, "fixed", lambda: right() + 1)
        planting.swap(Shelter, "told", lambda self: "wrong")
        planting.edit_in(Shelter, "of", "number < 3", "number <= 3")
        planting.edit_in(Shelter, "of", '"many"', '"lots"')
        planting.edit_in(Lean, "of", "upper", "title")
        planting.override(Lean, "fixed", lambda self: 7)
        assert (Shelter.fixed(), Shelter().told, Shelter().of(3), Lean().of(4)) == (2, "wrong", "few", "Lots")
        assert Lean().fixed() == 7
    finally:
        planting.undo()
    assert (Shelter.fixed(), Shelter().told, Shelter().of(3), Lean().of(4)) == (1, "right", "many", "MANY")
    assert Lean.fixed() == 1


@pytest.mark.parametrize(("act", "said"), [
    (lambda: planting.swap(Lean, "told", None), "Lean does not define 'told' any more; Shelter defines it"),
    (lambda: planting.edit_in(Shelter, "of", "return", "raise"), "holds 2 times what the defect changes"),
    (lambda: planting.edit_in(Shelter, "of", "number <", "number <<<"), "is no Python"),
    (lambda: planting.override(Lean, "of", None), "Lean defines 'of' itself"),
])  # fmt: skip
def test_what_cannot_be_planted_is_said_in_a_sentence(act, said):
    with pytest.raises(PlantError, match=said):
        act()
    assert not planting.changed()
