"""`reports gpu` without a GPU: a rehearsal of every real command on the CPU, and stand-ins for what may go wrong."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from reports.accelerator import run as driver
from reports.accelerator.facts import Facts, question
from reports.accelerator.parts import PARTS, Here
from reports.accelerator.results import Outcome, found_by, judged_by_sanitizer, outcome_of, row
from reports.accelerator.state import keep, kept
from reports.accelerator.summary import paragraph
from reports.accelerator.written import write
from reports.nightly.child import Ended
from reports.records import read
from reports.simulate.made_rows import write as record

pytestmark = pytest.mark.slow

HERE = Path(__file__).parents[2]
GPU = Facts("2.11.0+cu130", "13.0", "2.28.9", [{"name": "GPU", "memory_mib": 1, "capability": "9.0"}])


def called(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "reports", "gpu", *words], capture_output=True, text=True, timeout=3000, cwd=HERE, **more
    )


def the_record(out):
    (path,) = out.glob("*/gpu.jsonl")
    return read(path)


def outcomes(out):
    return {one["part"]: (one["outcome"], one["why"]) for one in the_record(out).rows}


# -- the real commands


def test_without_a_gpu_it_says_so_in_one_sentence_with_status_2(tmp_path):
    done = called("--out", str(tmp_path), env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("reports: there is no GPU here: torch ")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.environ.get("REHEARSAL") != "all", reason="some minutes: `make rehearsal`")
def test_every_command_is_rehearsed_on_the_cpu_and_a_second_run_repeats_nothing(tmp_path):
    words = ["--rehearse", "--select", "DDP-049", "--minutes", "60", "--out", str(tmp_path)]
    done = called(*words)
    found = outcomes(tmp_path)
    assert found.keys() == {part.name for part in PARTS}
    assert not {name: told for name, told in found.items() if told[0] == "failed"}, done.stderr
    cannot = {"nccl-each": "one GPU only", "perf-each": "one GPU only", "sanitizer": "is not installed"}
    for name, why in cannot.items():
        assert found[name][0] == "not run"
        assert why in found[name][1]
    assert found["targets"][0] == "not run"
    assert "no cells of transformer, world 1, device cuda" in found["targets"][1]  # its record is one of the CPU
    for name in found.keys() - cannot.keys() - {"targets"}:
        assert found[name] == ("proved", ""), done.stderr
    (log,) = tmp_path.glob("*/poison/log")
    assert "buffers in flight poisoned" in log.read_text()
    assert "This was a rehearsal on the CPU" in done.stdout
    assert "; failures (left out, because asked of NCCL only, where this torch can abort a group: a" in done.stdout
    assert "roved" not in done.stdout.replace(str(tmp_path), "")
    (page,) = tmp_path.glob("*/index.html")
    assert "proves nothing of a GPU" in page.read_text()
    again = called(*words, "--only", "start,sharing,streams")
    assert again.returncode == 0, again.stderr
    assert again.stderr == ""  # nothing was started


def test_bad_input_is_refused_in_one_sentence(tmp_path):
    for words, says in (
        (["--rehearse", "--only", "oops"], "there is no part 'oops'; there are start, nccl-1"),
        (["--minutes", "0"], "are no time"),
        (["--select", "JOIN-025"], "shortens a rehearsal"),
    ):
        done = called(*words, "--out", str(tmp_path))
        assert done.returncode == 2
        assert says in done.stderr
        assert done.stderr.count("\n") == 1


# -- stand-ins: parts that are small scripts


FAKE = """
import sys
from pathlib import Path
from reports.accelerator import parts, run
from reports.accelerator.facts import Facts

def part(name, body, limit_s=60, kind="findings"):
    def command(here, _):
        folder = here.folder(name)
        first = f"open({str(folder / 'starts')!r}, 'a').write('x')\\n"
        return [sys.executable, "-c", f"import json, os, sys, time; folder = {str(folder)!r}\\n{first}{body}"]
    return parts.Part(name, f"{name} is so", limit_s, command, kind=kind)

HELD = "json.dump([dict(what='it', state='held', why='', value=None, theirs=None, unit='')],"
HELD += " open(folder + '/findings.json', 'w'))\\n"
run.looked_up = lambda: Facts("2.11.0", "13.0", "2.28.9", [{"name": "GPU", "memory_mib": 1, "capability": "9"}])
"""


def fake(tmp_path, parts, minutes=5.0):
    """The command that runs these parts."""
    code = FAKE + textwrap.dedent(f"""
        run.PARTS = ({parts},)
        sys.exit(run.gpu(run.Asked(Path({str(tmp_path / "out")!r}), {minutes})))
    """)
    return [sys.executable, "-c", code]


def ran(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=HERE)


def starts(tmp_path, part):
    (path,) = (tmp_path / "out").glob(f"*/{part}/starts")
    return len(path.read_text())


SLEEPS_ONCE = "HELD + 'time.sleep(600 if os.path.getsize(folder + \"/starts\") == 1 else 0)'"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_was_killed_in_a_part_goes_on_with_that_part_and_repeats_no_other(tmp_path, number):
    command = fake(tmp_path, f"part('first', HELD), part('second', {SLEEPS_ONCE}), part('third', HELD)")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=HERE)
    try:
        end = time.monotonic() + 120
        while not list((tmp_path / "out").glob("*/second/findings.json")):
            assert time.monotonic() < end, "the second part did not begin"
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(120) == (-number if number == signal.SIGKILL else 130)
    finally:
        process.kill()
    halfway = the_record(tmp_path / "out")
    assert not halfway.complete
    assert [one["outcome"] for one in halfway.rows] == ["proved", "unfinished", "unfinished"]
    done = ran(command)
    assert done.returncode == 0, done.stderr
    assert the_record(tmp_path / "out").complete
    assert set(outcomes(tmp_path / "out").values()) == {("proved", "")}
    assert [starts(tmp_path, part) for part in ("first", "second", "third")] == [1, 2, 1]


def test_a_part_that_is_late_is_stopped_and_the_next_ones_have_their_turn(tmp_path):
    command = fake(tmp_path, f"part('slow', {SLEEPS_ONCE}, limit_s=15), part('next', HELD)")  # 3 s of 5 minutes
    done = ran(command)
    assert done.returncode == 3, done.stderr
    found = outcomes(tmp_path / "out")
    assert found["next"] == ("proved", "")
    assert found["slow"][0] == "unfinished"
    assert "its deadline; the same command goes on" in found["slow"][1]
    (slow,) = [one for one in the_record(tmp_path / "out").rows if one["part"] == "slow"]
    assert slow["counts"] == {"held": 1}  # what it had found is told
    assert ran(command).returncode == 0


def test_what_there_is_no_time_for_is_left_to_the_same_command(tmp_path):
    done = ran(fake(tmp_path, "part('first', HELD)", minutes=0.1))
    assert done.returncode == 3
    assert "no time was left for it" in outcomes(tmp_path / "out")["first"][1]
    assert not list((tmp_path / "out").glob("*/first/starts"))


@pytest.mark.parametrize(("body", "status", "outcome", "says"), [
    ("HELD.replace('held', 'broken').replace(\"why=''\", \"why='off by 3'\") + 'sys.exit(1)'",
     1, "disproved", "it: off by 3"),
    ("\"sys.exit('x: error: unrecognized arguments: --poison')\".replace('sys.exit(', 'print(') + ';sys.exit(2)'",
     2, "not run", "not available in this version"),
    ("\"print('NCCL says no'); sys.exit(2)\"", 2, "not run", "NCCL says no"),
    ("\"print('a bug'); sys.exit(7)\"", 3, "failed", "ended with status 7: a bug"),
    ("'pass'", 2, "not run", "it left no result"),
    ("HELD.replace('held', 'open').replace(\"why=''\", \"why='1.00 [0.98, 1.02]'\")", 2, "open", "it: 1.00 [0.98"),
    ("HELD.replace('held', 'broken').replace(\"why=''\", \"why='1.08'\")", 1, "disproved", "it: 1.08"),
])  # fmt: skip
def test_how_a_command_ends_says_what_is_proved(tmp_path, body, status, outcome, says):
    done = ran(fake(tmp_path, f"part('it', {body})"))
    assert done.returncode == status, done.stderr
    assert outcomes(tmp_path / "out")["it"][0] == outcome
    assert says in outcomes(tmp_path / "out")["it"][1]


def test_two_at_once_are_one_too_many(tmp_path):
    from reports.nightly.lock import locked

    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out" / ".lock"):
        done = ran(fake(tmp_path, "part('it', HELD)").copy())
    assert done.returncode != 0
    assert "a run on the GPU is going on" in done.stderr


# -- reading and telling


def test_a_command_that_was_stopped_or_fell_over_is_run_again_and_others_are_not(tmp_path):
    for outcome in Outcome:
        folder = tmp_path / outcome.name
        keep(folder, row("it", "it is so", outcome))
        assert (kept(folder) is not None) == outcome.final
    assert kept(tmp_path / "nowhere") is None
    (tmp_path / "PROVED" / "done.json").write_text('{"part": "it"')
    assert kept(tmp_path / "PROVED") is None


def test_other_libraries_or_other_code_are_another_question():
    assert question(GPU) == question(GPU)
    assert question(GPU) != question(Facts("2.13.0", gpus=GPU.gpus))
    assert question(GPU) != question(GPU, "rehearsed")


@pytest.mark.parametrize(("ended", "outcome"), [
    (Ended(0, 1.0, False), Outcome.PROVED), (Ended(1, 1.0, False), Outcome.DISPROVED),
    (Ended(2, 1.0, False), Outcome.NOT_RUN), (Ended(-9, 1.0, False), Outcome.FAILED),
    (Ended(130, 9.0, True), Outcome.UNFINISHED),
])  # fmt: skip
def test_statuses(ended, outcome):
    assert outcome_of(ended, "said")[0] is outcome


def test_the_sanitizers_own_summaries_count():
    assert judged_by_sanitizer(Outcome.FAILED, "status 9", "ERROR SUMMARY: 0 errors\n= ERROR SUMMARY: 2 errors")[0] is (
        Outcome.DISPROVED
    )
    assert judged_by_sanitizer(Outcome.PROVED, "", "= ERROR SUMMARY: 0 errors")[0] is Outcome.PROVED
    assert judged_by_sanitizer(Outcome.PROVED, "", "nothing")[0] is Outcome.FAILED


def case(**more):
    told = {
        "clause": "DDP-049", "check": "c", "scenario": "", "subject": "impl", "backend": "nccl", "world": 2,
        "outcome": "passed", "seconds": 1.0, "witness": "", "level": "MUST", "deviation": "", "notes": [],
    }  # fmt: skip
    return {**told, **more}


def test_what_is_broken_and_not_listed_is_named(tmp_path):
    rows = [case(), case(outcome="failed", witness="rank 1 has 2\nmore"), case(outcome="hung", deviation="known")]
    record(tmp_path / "conformance.jsonl", "conformance", rows)
    counts, findings, name = found_by("suite", tmp_path)
    assert counts == {"passed": 1, "failed": 1, "listed": 1}
    assert [(one["what"], one["why"]) for one in findings] == [("DDP-049 by impl at 2 ranks on nccl", "rank 1 has 2")]
    assert name == "conformance.jsonl"


def cell(subject, wall_ms, launches):
    axes = {"workload": "transformer", "world": 1, "bucket_view": False, "settings": "best", "hook": "none", "copy": 1}
    time_ns = [[int(wall_ms * 1e6)]] * 3
    derived = {"launches": launches, "synchronisations": 0.0, "peak_bytes": [2**21]}  # that one by rank
    return {
        "series": f"transformer | {subject}", "group": "g", "subject": subject, "axes": axes, "workload_hash": "",
        "unit": "step", "status": "ok", "reason": "", "wall_ns": time_ns, "cpu_ns": time_ns, "device_ns": time_ns,
        "block": [0, 1, 2], "warmup_ns": [], "derived": derived, "verified": {},
    }  # fmt: skip


def test_figures_of_ours_stand_beside_torchs(tmp_path):
    record(tmp_path / "gpu.jsonl", "perf", [cell("impl", 9.0, 90.0), cell("torch", 10.0, 100.0)])
    counts, findings, _ = found_by("perf", tmp_path)
    assert counts == {"ok": 2}
    found = {one["what"].removeprefix("transformer at 1, best: "): (one["value"], one["theirs"]) for one in findings}
    assert found["step"] == (9.0, 10.0)
    assert found["launches"] == (90.0, 100.0)
    assert found["memory at its peak"] == (2.0, 2.0)
    rows = [row("perf", "measured", Outcome.PROVED, findings=findings, counts=counts)]
    assert "transformer at 1, best: step 0.90" in paragraph(GPU, rows, rehearsed=False)


def test_the_paragraph_says_what_is_proved_and_what_is_not():
    rows = [
        row("a", "a holds", Outcome.PROVED, counts={"passed": 12}), row("b", "b holds", Outcome.DISPROVED, "x is 3"),
        row("c", "c holds", Outcome.NOT_RUN, "one GPU only"), row("d", "d holds", Outcome.UNFINISHED, "late"),
    ]  # fmt: skip
    assert paragraph(GPU, rows, rehearsed=False) == (
        "On GPU with torch 2.11.0+cu130, CUDA 13.0, NCCL 2.28.9: Proved: a holds (12 cases). Not so: b holds (x is 3). "
        "Not run: c holds (one GPU only). Not finished; the same command goes on: d holds."
    )
    assert driver.status_of(rows) == 1
    assert driver.status_of(rows[2:]) == 3
    assert driver.status_of([rows[0], rows[2]]) == 0
    assert driver.status_of([rows[2]]) == 2  # nothing was proved


def test_the_paragraph_names_what_a_proof_leaves_out():
    unasked = {"what": "an abort", "state": "not run", "why": "NCCL only", "value": None, "theirs": None, "unit": ""}
    rows = [
        row("a", "a holds", Outcome.PROVED, counts={"passed": 12, "not run": 3}),
        row("b", "b holds", Outcome.PROVED, counts={"held": 1, "not run": 1}, findings=[unasked]),
        row("c", "c holds", Outcome.OPEN, "x is 1.00 [0.98, 1.02]"),
    ]  # fmt: skip
    assert paragraph(GPU, rows, rehearsed=False).partition(": ")[2] == (
        "Proved: a holds (12 cases, 3 not run); b holds (left out, because NCCL only: an abort). "
        "Cannot be told from what was measured: c holds (x is 1.00 [0.98, 1.02])."
    )


def test_the_page_escapes_what_commands_say(tmp_path):
    one = row("a", "a holds", Outcome.DISPROVED, "<script>alert(1)</script>", 1.5, ["python", "-m", "x y"])
    pages = write(Here(GPU, tmp_path / "q"), [one], interrupted=False)
    text = pages.page.read_text()
    assert "<script>" not in text
    assert "python -m &#39;x y&#39;" in text
    assert read(pages.record).header["facts"]["nccl"] == "2.28.9"
    assert pages.paragraph.read_text().startswith("On GPU with torch")


def test_the_commands_of_one_gpu_and_of_four():
    done = called("--list")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    by = {(one["gpus"], one["part"]): one for one in lines}
    assert len(by) == 2 * len(PARTS)
    assert by[1, "nccl-each"]["obstacle"] == "there is one GPU only"
    assert not by[4, "nccl-each"]["obstacle"]
    assert "2,3,4" in by[4, "nccl-each"]["command"]
    assert "nccl+hostid" in by[1, "nccl-shared-2"]["command"]
