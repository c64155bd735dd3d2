"""The nightly command with stand-ins for what it runs: exit statuses, reruns, one at a time, and no children left."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reports.history import HistoryError, scan
from reports.history.layout import night_name
from reports.nightly.child import run
from reports.nightly.earlier import checked_out
from reports.nightly.lock import locked
from reports.nightly.plan import checked, seconds
from reports.records import read

pytestmark = pytest.mark.slow

CONFORMANCE = "{python} -m reports.simulate.made_rows conformance --select {select} --out {out}"
PERF = "{python} -m reports.simulate.made_rows perf {only} --out {out}"
HERE = Path(__file__).parents[2]


def command(tmp_path, *more, conformance=CONFORMANCE, perf=PERF, budget="5m", world="2"):
    words = [sys.executable, "-m", "reports", "nightly", "--history", str(tmp_path / "h"), "--out", str(tmp_path / "o")]
    words += ["--budget", budget, "--world", world, "--machine", "box"]
    return [*words, "--conformance", conformance, "--perf", perf, *more]


def nightly(tmp_path, *words, code=None, **more):
    fakes = {name: more.pop(name) for name in list(more) if name.startswith("FAKE_")}
    environment = {**os.environ, **fakes, "PYTHONPATH": str(HERE)}
    return subprocess.run(
        command(tmp_path, *words, **more), env=environment, capture_output=True, text=True, timeout=600, cwd=code
    )  # fmt: skip


def committed(folder, pace):
    """A repository whose code is so slow; its new commit."""
    folder.mkdir(exist_ok=True)
    (folder / "pace").write_text(str(pace))
    who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    for words in (["init", "-q"], ["add", "pace"], [*who, "commit", "-q", "-m", f"pace {pace}"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def nights(tmp_path):
    return scan(tmp_path / "h", datetime.now(UTC)).nights


@pytest.mark.long
def test_three_nights_with_a_slow_down_planted_in_the_code_of_the_third(tmp_path):
    code = committed(tmp_path / "code", 1.0)
    for _ in range(2):
        done = nightly(tmp_path, code=code)
        assert done.returncode == 0, done.stdout + done.stderr
    committed(code, 1.15)
    done = nightly(tmp_path, code=code)
    assert done.returncode == 1, done.stdout + done.stderr
    first, second, third = nights(tmp_path)
    assert len(first.files["perf"]) == 2  # with few nights, each is measured twice
    assert len(third.files["perf"]) == 1 + 4  # measured again before it was believed …
    assert len(third.files["before"]) == 4  # … in turns with the code of the first night
    assert {row["axes"]["workload"] for row in read(third.files["perf"][1]).rows} == {"mlp"}
    assert read(third.files["before"][0]).header["commit"] == read(first.files["perf"][0]).header["commit"]
    (reason,) = [line for line in done.stdout.splitlines() if "slower since" in line]
    assert done.stdout.startswith("box: REGRESSED tonight (series: 7 learning, 1 confirmed)")
    assert len(done.stdout.splitlines()) == 4  # healthy or not, what since when, how to reproduce it, the page
    assert "stopped after" not in done.stderr
    assert "mlp" in reason
    assert "impl / torch" in reason
    assert f"since {third.name}" in reason
    assert "reproduce: python -m reports.simulate.made_rows perf --only 'mlp" in done.stdout
    assert "1 series slower" in (tmp_path / "o" / "index.html").read_text()
    verdict = read(third.folder / "verdict.jsonl")
    assert verdict.footer["exit_status"] == 1
    assert verdict.header["parameters"]["early_again"] == 4
    assert [row["state"] for row in verdict.rows if row["alarms"]] == ["confirmed"]
    assert second.manifest["parts"] == {"conformance": {"status": 0, "why": ""}, "perf": {"status": 0, "why": ""}}
    assert "code-" not in subprocess.run(["git", "worktree", "list"], cwd=code, capture_output=True, text=True).stdout
    key = reason[reason.rindex("(") + 1 : -1]
    words = [sys.executable, "-m", "reports", "ack", key, "--note", "known", "--history", str(tmp_path / "h")]
    assert subprocess.run(words, timeout=600).returncode == 0
    judged = subprocess.run([sys.executable, "-m", "reports", "judge", str(tmp_path / "h")], timeout=600)
    assert judged.returncode == 0


@pytest.mark.parametrize("other", [True, False])
def test_a_night_that_is_slow_for_any_code_is_watched_and_does_not_alarm(tmp_path, other):
    code = committed(tmp_path / "code", 1.0)
    for _ in range(2):
        nightly(tmp_path, code=code, conformance="")
    if other:
        committed(code, 1.001)
    done = nightly(tmp_path, code=code, conformance="", FAKE_SLOW="1.2")
    assert done.returncode == 0, done.stdout
    assert "new, not certain yet: mlp" in done.stdout
    assert len(nights(tmp_path)[-1].files["before"]) == (4 if other else 0)
    assert ("no earlier night tells a commit with other code" in done.stderr) != other


def test_a_slow_down_that_is_gone_when_measured_again_is_no_alarm(tmp_path):
    for _ in range(2):
        nightly(tmp_path, conformance="")
    done = nightly(tmp_path, conformance="", FAKE_SLOW="1.2", FAKE_ONCE="1")
    assert done.returncode == 0, done.stdout
    assert "not certain" not in done.stdout
    assert len(nights(tmp_path)[-1].files["perf"]) > 1


def test_a_broken_clause_is_asked_again_and_alarms_if_it_stays_broken(tmp_path):
    done = nightly(tmp_path, perf="", FAKE_BROKEN="JOIN-002")
    assert done.returncode == 1
    assert "JOIN-002 is broken (failed) by impl" in done.stdout
    (night,) = nights(tmp_path)
    again = read(night.files["conformance"][1])
    assert {row["clause"] for row in again.rows} == {"JOIN-002"}
    done = nightly(tmp_path, perf="", FAKE_BROKEN="JOIN-001", FAKE_ONCE="1")
    assert done.returncode == 0, done.stdout


def test_a_night_that_is_not_the_latest_of_its_history_is_not_judged_by_the_one_that_is(tmp_path):
    assert nightly(tmp_path, perf="").returncode == 0
    (night,) = nights(tmp_path)
    later = night_name(datetime.now(UTC) + timedelta(minutes=50), "0000")  # the clock was ahead then
    night.folder.rename(night.folder.with_name(later))
    done = nightly(tmp_path, perf="", FAKE_BROKEN="JOIN-002")
    assert done.returncode == 2
    assert "HEALTHY" not in done.stdout
    assert "is not the latest night of the history: another is later" in done.stderr
    tonight, _ = nights(tmp_path)
    assert not (tonight.folder / "verdict.jsonl").exists()
    assert len(tonight.files["conformance"]) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"FAKE_FAILS": "perf"}, "perf is missing: ended with status 3: the fake fails, as it was told"),
        ({"perf": "no-such-program {out}"}, "perf is missing: its command cannot be started"),
        ({"perf": "{python} -c pass {out}"}, "perf is missing: left no record (exit status 0)"),
    ],
)
def test_a_part_that_fails_leaves_a_half_night_that_could_not_be_judged(tmp_path, more, words):
    done = nightly(tmp_path, **more)
    assert done.returncode == 2
    assert words in done.stdout
    (night,) = nights(tmp_path)
    assert night.files["conformance"]
    assert not night.files["perf"]


@pytest.mark.long
def test_a_part_that_takes_too_long_is_stopped_and_what_it_wrote_is_kept(tmp_path):
    done = nightly(tmp_path, "--clauses-within", "30s", perf="", FAKE_SLEEP="600")
    assert done.returncode == 2
    assert "conformance is not whole: stopped after" in done.stdout
    (night,) = nights(tmp_path)
    assert len(read(night.files["conformance"][0], partial=True).rows) == 6


def waits_for(condition, seconds_s=300):
    end = time.monotonic() + seconds_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def sleepers(marker):
    """Processes that were started for the run whose folder is ``marker``."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                line = file.read()
        except OSError:
            continue
        stand_in = b"reports.simulate.made_rows" in line and b"nightly" not in line
        if entry.isdigit() and marker.encode() in line and stand_in:
            found.append(int(entry))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_child_and_keeps_what_was_finished(tmp_path, number):
    environment = {**os.environ, "FAKE_SLEEP": "300"}
    process = subprocess.Popen(command(tmp_path), env=environment, stderr=subprocess.DEVNULL)
    try:
        waits_for(lambda: any("asleep" in log.read_text() for log in (tmp_path / "o").glob("work-*/*.log")))
        assert sleepers(str(tmp_path))
        process.send_signal(number)
        status = process.wait(300)
    finally:
        process.kill()
    waits_for(lambda: not sleepers(str(tmp_path)))
    if number == signal.SIGKILL:
        assert list((tmp_path / "o").glob("work-*/conformance/*.part"))
        return
    assert status == 130
    (night,) = nights(tmp_path)
    assert night.manifest["parts"]["conformance"]["why"] == "interrupted"
    assert len(read(night.files["conformance"][0], partial=True).rows) == 6


def test_only_one_run_at_a_time_and_the_lock_of_a_dead_one_is_free(tmp_path):
    (tmp_path / "h").mkdir()
    lock = tmp_path / "h" / ".lock-box"
    lock.write_text("process 999999999")  # left by a run that was killed
    with locked(lock):
        done = nightly(tmp_path)
        assert done.returncode == 2
        assert f"a nightly run is going on (process {os.getpid()}" in done.stderr
        assert not nights(tmp_path)
    assert nightly(tmp_path, perf="").returncode == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"budget": "soon"}, "'soon' is no budget"),
        ({"world": "0"}, "world 0 is not a whole number above 0"),
        ({"perf": "x {oops} {out}"}, "cannot be filled in"),
        ({"perf": "x"}, "does not say {out}"),
        ({"perf": "x --only={only} {out}"}, "{only} as a word of its own"),
        ({"perf": "", "conformance": ""}, "there is nothing to do"),
    ],
)
def test_bad_input_is_refused_in_one_sentence_before_anything_starts(tmp_path, more, words):
    done = nightly(tmp_path, **more)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "h").exists()


def test_budgets_and_templates():
    assert [seconds("90s"), seconds("1.5h"), seconds("2m")] == [90, 5400, 120]
    with pytest.raises(HistoryError):
        seconds("0m")
    assert checked("a '{out} b'", "x") == "a '{out} b'"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_a_child_that_ignores_a_polite_request_is_killed_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr("reports.nightly.child._GRACE_S", 0.5)
    script = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)', {str(tmp_path)!r}])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(300)\n"
    )
    log = tmp_path / "log"
    ended = run([sys.executable, "-c", script], log, 15.0)
    assert ended.late
    assert ended.status == -signal.SIGKILL
    pid = int(log.read_text())
    waits_for(lambda: not running(pid))


def git(folder, *words):
    who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


@pytest.fixture
def two_branches(tmp_path, monkeypatch):
    """A repository, as the folder to work in, whose branch ``aside`` HEAD does not descend from."""
    code = committed(tmp_path / "code", 1.0)
    git(code, "branch", "main-line")
    git(code, "checkout", "-q", "-b", "aside")
    committed(code, 3.0)
    git(code, "checkout", "-q", "main-line")
    committed(code, 2.0)
    git(code, "tag", "-a", "v1", "-m", "v1", "HEAD~1")
    monkeypatch.chdir(code)
    return code


def test_the_code_of_an_ancestor_is_checked_out_and_removed_again(two_branches, tmp_path):
    with checked_out(git(two_branches, "rev-parse", "HEAD~1"), tmp_path / "there") as code:
        assert (code / "pace").read_text() == "1.0"
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("HEAD", "no full hash"),
        ("aside", "no full hash"),
        ("--detach", "no full hash"),
        ("-b", "no full hash"),
        ("../../../etc", "no full hash"),
        ("\x1b[2J\nnightly: HEALTHY", "no full hash"),
        ("HEAD@{1}", "no full hash"),
        ("a\0b", "no full hash"),
        ("a" * 39, "no full hash"),
        ("short", "no full hash"),
        ("upper", "no full hash"),
        ("a" * 40 + "\n", "no full hash"),
        ("a" * 40, "no ancestor of HEAD"),
        ("b" * 64, "no ancestor of HEAD"),
        ("foreign", "no ancestor of HEAD"),
        ("blob", "no ancestor of HEAD"),
        ("tag", "the hash of a tag"),
    ],
)
def test_a_history_cannot_name_code_that_is_not_behind_tonights(two_branches, tmp_path, capsys, named, words):
    head, foreign, blob, tag = git(two_branches, "rev-parse", "HEAD~1", "aside", "HEAD:pace", "v1").split()
    real = {"short": head[:12], "upper": head.upper(), "foreign": foreign, "blob": blob, "tag": tag}
    with checked_out(real.get(named, named), tmp_path / "there") as code:
        assert code is None
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert "\x1b" not in said
    assert not (tmp_path / "there").exists()
    assert git(two_branches, "worktree", "list").count("\n") == 0


def test_the_manifest_says_what_and_where(tmp_path):
    nightly(tmp_path, perf="")
    manifest = json.loads((nights(tmp_path)[0].folder / "night.json").read_text())
    assert manifest["parts"]["perf"]["off"]
    assert manifest["machine"]["cores"] >= 1
    assert manifest["began"] <= manifest["finished"]


def test_the_job_for_slurm_ends_with_the_status_of_the_night_that_it_was_asked_to_end():
    text = (HERE / "reports/examples/nightly.sbatch").read_text()
    waiting = text[text.index("run=$!") :].replace('wait "$run"\n', 'echo waits; wait "$run"\n', 1)
    night = "(trap 'exit 130' TERM; echo runs; while :; do sleep 0.05; done) &\n"
    with subprocess.Popen(["bash", "-c", night + waiting], stdout=subprocess.PIPE, text=True) as job:
        assert {job.stdout.readline(), job.stdout.readline()} == {"runs\n", "waits\n"}
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 130
