"""Planted defects: each is well declared and can be planted, some are hunted, and what does no harm survives."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from conformance import clauses, inventory
from conformance.bad_input import BadInput
from conformance.commands.defects import ensure_known
from conformance.defects import planted, planting, sins
from conformance.defects.planting import PlantError

from .test_frame_run import marked, needs_proc, wait_for

HOME = Path(__file__).parents[2]
SINS = sins.load()
CATALOGUE = clauses.load()
#: one or two of each area, hunted in every run of the tests; `make defects` hunts all
SUBSET = (
    "join/error_of_the_body_is_wrapped", "ddp_join/always_divides_by_the_initial_size",
    "ddp_join/final_model_is_that_of_rank_0", "ddp/divides_by_one_too_many", "ddp/group_rank_taken_for_global_rank",
    "ddp/only_differing_ranks_refuse", "ddp/unused_everywhere_gets_zeros", "comm/hook_gets_divided_gradients",
    "comm/any_future_accepted", "hook/all_groups_have_the_settings_of_the_first",
    "zero/joined_rank_steps_with_its_old_gradients",
)  # fmt: skip

HARMLESS = '''"""Nothing is wrong here."""

from impl.ddp import DistributedDataParallel

from conformance.defects.planting import edit

CLAUSES = ("DDP-044", "DDP-049")


def plant():
    edit(DistributedDataParallel, "no_sync", "before = self", "before = True and self")
'''
HARMFUL = HARMLESS.replace('"no_sync", "before = self", "before = True and self"', '"forward", "LABEL", "OTHER"')
HARMFUL = HARMFUL.replace("LABEL", '\\"DistributedDataParallel.forward\\"').replace("OTHER", '\\"DDP.forward\\"')
MISNAMED = HARMLESS.replace("before = self", "behind = self")
CLUMSY = HARMFUL.replace('\\"DDP.forward\\"', "no_such_name")


def test_every_defect_names_clauses_that_checks_decide():
    assert len(SINS) >= 150
    ensure_known(SINS, CATALOGUE, inventory.CHECKS)


def test_no_two_defects_say_the_same():
    sentences = [f"{sin.area}: {sin.sentence}" for sin in SINS]
    assert sorted(set(sentences)) == sorted(sentences)


@pytest.mark.parametrize("sin", SINS, ids=lambda sin: sin.id)
def test_every_defect_can_be_planted_and_taken_out_again(sin):
    try:
        assert planted.subject(sin.attribute).name == sin.id
        assert planting.changed()
    finally:
        planted.clear()
    assert not planting.changed()


def lay(folder, **defects):
    """A folder of defects made up for a test."""
    (folder / "ddp").mkdir()
    for name, text in defects.items():
        (folder / "ddp" / f"{name}.py").write_text(text)
    return folder


def hunt(*words):
    """``python -m conformance defects``: exit status, standard output, standard error."""
    command = [sys.executable, "-m", "conformance", "defects", *map(str, words)]
    done = subprocess.run(command, cwd=HOME, env={**os.environ}, capture_output=True, text=True, timeout=900)
    return done.returncode, done.stdout, done.stderr


def test_the_suite_catches_a_few_of_each_area():
    status, out, err = hunt("--select", ",".join(SUBSET))
    assert status == 0, out + err
    assert out.splitlines()[-1] == f"{len(SUBSET)} killed, 0 survived"
    for sin in SINS:
        if sin.id in SUBSET:
            assert all(clause in out for clause in sin.clauses)


def test_what_is_harmless_survives_and_what_cannot_be_planted_is_no_kill(tmp_path):
    folder = lay(tmp_path, a_harmful=HARMFUL, a_harmless=HARMLESS, a_misnamed=MISNAMED, b_clumsy=CLUMSY)
    status, out, err = hunt("--defects", folder, "--jobs", "1")
    assert status == 1, out + err
    rows = [line.split() for line in out.splitlines()]
    assert ["ddp/a_harmful", "DDP-044", "killed"] in [row[:3] for row in rows]
    assert ["ddp/a_harmless", "DDP-044", "SURVIVED"] in [row[:3] for row in rows]
    assert "ddp/a_harmful: not caught by DDP-049" in out
    assert "ddp/a_harmless: not caught by DDP-044, DDP-049" in out
    assert "no_sync holds 0 times what the defect changes" in out
    assert "ddp/b_clumsy: not caught by DDP-044, DDP-049" in out  # a NameError of the defect's own proves nothing
    assert out.splitlines()[-1] == "0 killed, 3 survived, 1 could not be tried"


@needs_proc
def test_an_interrupted_hunt_leaves_no_process():
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
    status, out, err = hunt(*words)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("text", "said"), [
    ("CLAUSES = ('DDP-049',)", "does not say its sin"),
    ("'''A sin.'''\nCLAUSES = 'DDP-049'", "needs CLAUSES"),
    ("'''A sin.'''\nCLAUSES = ('DDP-049',)\nWORLDS = ('2',)", "WORLDS must be"),
    ("'''A sin.'''\nCLAUSES = (", "is no Python"),
])  # fmt: skip
def test_a_file_that_declares_itself_badly_is_refused(tmp_path, text, said):
    with pytest.raises(BadInput, match=said):
        sins.load(lay(tmp_path, wrong=text))


def test_a_defect_of_an_unknown_clause_is_refused(tmp_path):
    known = sins.load(lay(tmp_path, wrong=HARMLESS.replace("DDP-049", "DDP-999")))
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
        planting.edit(Shelter, "of", "number < 3", "number <= 3")
        planting.edit(Shelter, "of", '"many"', '"lots"')
        planting.edit(Lean, "of", "upper", "title")
        planting.override(Lean, "fixed", lambda self: 7)
        assert (Shelter.fixed(), Shelter().told, Shelter().of(3), Lean().of(4)) == (2, "wrong", "few", "Lots")
        assert Lean().fixed() == 7
    finally:
        planting.undo()
    assert (Shelter.fixed(), Shelter().told, Shelter().of(3), Lean().of(4)) == (1, "right", "many", "MANY")
    assert Lean.fixed() == 1


@pytest.mark.parametrize(("act", "said"), [
    (lambda: planting.swap(Lean, "told", None), "Lean does not define 'told' any more; Shelter defines it"),
    (lambda: planting.edit(Shelter, "of", "return", "raise"), "holds 2 times what the defect changes"),
    (lambda: planting.edit(Shelter, "of", "number <", "number <<<"), "is no Python"),
    (lambda: planting.override(Lean, "of", None), "Lean defines 'of' itself"),
])  # fmt: skip
def test_what_cannot_be_planted_is_said_in_a_sentence(act, said):
    with pytest.raises(PlantError, match=said):
        act()
    assert not planting.changed()
