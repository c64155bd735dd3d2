"""Every listed deviation of torch has a script that shows it; the same script finds nothing wrong with our own classes.

By default a few scripts run; with ``REPROS=all`` in the environment (``make repros``) every one does.
"""

import ast
import os
import re
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import impl
from conformance.__main__ import main
from conformance.clauses import load
from conformance.deviations import built_in
from conformance.repros import Case, cases, search
from conformance.repros.script import MOST_LINES, schedule, write

pytestmark = pytest.mark.slow

QUICK = ("comm_014", "ddp_040", "ddpj_030", "hook_043", "join_020", "zero_018")
EVERY = {case.name: case for case in cases()}
CHOSEN = sorted(EVERY) if os.environ.get("REPROS") == "all" else list(QUICK)
ROOT = Path(impl.__file__).parents[1]
HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
LIBRARY = ("default_hooks", "optimizer_overlap_hooks", "powerSGD_hook", "quantization_hooks")
OURS = {
    "torch.distributed.algorithms.join": "impl.join",
    "torch.distributed.optim": "impl.zero",
    "torch.nn.parallel": "impl.ddp",
    "torch.nn.parallel.distributed": "impl.ddp",
    f"{HOOKS}.ddp_zero_hook": "impl.overlap",
    **{f"{HOOKS}.{name}": f"impl.ddp.hooks.{name}" for name in LIBRARY},
}


def shows_with_this_torch(case: Case) -> bool:
    """Whether a deviation that the case stands for is listed for the installed torch."""
    listed = [each for each in built_in("torch") if each.holds_for(torch.__version__)]
    return any(case.stands_for(each) for each in listed)


def script_of(case: Case) -> str:
    return write(case.path, case.shows[0][0])


def with_ours(text: str) -> str:
    """The script with torch's classes replaced by ours, and more time: who is right has nothing to wait for."""
    for module in re.findall(r"^from (torch\.\S+) import", text, re.MULTILINE):
        if module in OURS:
            text = text.replace(f"from {module} import", f"from {OURS[module]} import")
    assert "from impl" in text, "nothing was replaced"
    path = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    return path + text.replace("deadline=15", "deadline=120")


def script_in(folder, name, whose):
    text = script_of(EVERY[name])
    script = folder / f"{name}_{whose}.py"
    script.write_text(text if whose == "torch" else with_ours(text))
    return script


def shown_by(script, times):
    """What a script shows. Some breaks are races: one that does not show is looked for again."""
    for _ in range(times - 1):
        shown = search.run(script)
        if shown.broken:
            return shown
    return search.run(script)


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Runs of the scripts that the selected tests ask for; a few at a time, since many of them only wait."""
    folder = tmp_path_factory.mktemp("repros")
    tests = [item for item in request.session.items if "ran" in getattr(item, "fixturenames", ())]
    runs: dict[tuple[str, str], Future] = {}
    with ThreadPoolExecutor(4 if len(tests) > 2 * len(QUICK) else 2) as pool:
        for item in tests:
            name, whose = item.callspec.params["name"], item.callspec.params["whose"]
            script = script_in(folder, name, whose)  # not in the pool: CPython 3.11 parses in one thread at a time
            breaks = whose == "torch" and shows_with_this_torch(EVERY[name])
            runs[name, whose] = pool.submit(shown_by, script, 3 if breaks else 1)
        try:
            yield runs
        finally:  # after Ctrl-C, too: else it would end only after all that were still to come
            pool.shutdown(wait=False, cancel_futures=True)


@pytest.mark.parametrize("whose", ["torch", "impl"])
@pytest.mark.parametrize("name", CHOSEN)
def test_the_script_shows_the_break_of_torch_and_finds_our_classes_right(ran, name, whose):
    shown = ran[name, whose].result()
    assert shown.broken == (whose == "torch" and shows_with_this_torch(EVERY[name])), shown.output


def test_every_listed_deviation_has_a_script_and_every_script_a_deviation():
    deviations = built_in("torch")
    without = [str(each) for each in deviations if not any(case.stands_for(each) for case in EVERY.values())]
    assert not without, "deviations that no case in conformance/repros/cases shows"
    idle = [name for name, case in EVERY.items() if not any(case.stands_for(each) for each in deviations)]
    assert not idle, "cases whose '# shows:' lines match no listed deviation"
    catalogue = load()
    assert all(catalogue.get(clause) for case in EVERY.values() for clause, _ in case.shows)


@pytest.mark.parametrize("name", sorted(EVERY))
def test_a_script_is_short_and_imports_only_torch_and_the_standard_library(name):
    text = script_of(EVERY[name])
    assert len(text.splitlines()) <= MOST_LINES < 60
    assert max(map(len, text.splitlines())) <= 125
    imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {
        name.partition(".")[0]
        for node in imported
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    assert modules - sys.stdlib_module_names == {"torch"}
    assert not any(isinstance(node, ast.ImportFrom) and node.level for node in imported)


@pytest.mark.parametrize("name", sorted(EVERY))
def test_ours_can_take_the_place_of_torchs_classes_in_a_script(name):
    assert "from impl" in with_ours(script_of(EVERY[name]))


def test_a_schedule_is_put_into_the_script():
    case = EVERY["zero_022"]
    assert schedule(case.path) == (0, 1)
    assert "\nINPUTS = (2, 3)" in write(case.path, "ZERO-022", (2, 3))


def test_smaller_schedules_come_by_their_sum_and_then_in_order():
    assert list(search.smaller((2, 0))) == [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)]
    assert list(search.smaller((1, 3))) == [(1, 1), (1, 2), (2, 1)], "a rank without inputs may be another fault"


def fake_case(folder: Path, body: str) -> Case:
    path = folder / "fake_001.py"
    path.write_text('"""A fault."""\n\n# shows: JOIN-018 *\n\nfrom .prelude import judge\n\n' + body)
    return Case(path, (("JOIN-018", "*"),))


def test_the_smallest_schedule_that_shows_the_break_is_found(tmp_path):
    body = "INPUTS = (1, 3)\n\n\njudge(lambda rank: sum(INPUTS) < 3 or rank == 0, 'few inputs', True)\n"
    found = search.smallest(fake_case(tmp_path, body), "JOIN-018")
    assert (found.inputs, found.without) == ((1, 2), ((1, 1),))
    assert "rank 1: False" in found.shown.output


def test_a_script_that_is_itself_wrong_is_no_break(tmp_path):
    script = tmp_path / "wrong.py"
    script.write_text("print('so far')\nraise KeyError('a mistake of the script')\n")
    with pytest.raises(search.ScriptFailed, match="a mistake of the script"):
        search.run(script)


def test_a_script_that_does_not_end_is_ended(tmp_path, monkeypatch):
    script = tmp_path / "endless.py"
    script.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(search, "LONGEST_S", 0)
    with pytest.raises(search.ScriptFailed, match=r"endless.py did not end"):
        search.run(script)


def test_the_command_writes_a_script_and_a_text_that_holds_its_output(tmp_path, capsys):
    assert main(["repro", "zero-018", "--out", str(tmp_path)]) == 0
    script, issue = (tmp_path / f"zero_018.{kind}" for kind in ("py", "md"))
    text = issue.read_text()
    assert script.read_text().rstrip() in text
    assert "2 of 2 states lost" in text or "1 of 2 states lost" in text
    assert text.startswith("# load_state_dict")
    assert str(script) in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "words"), [
    (["NOPE-001"], "there is no clause 'NOPE-001'"),
    (["JOIN-001"], "JOIN-001 has no listed deviation of torch"),
    (["ZERO-022", "--subject", "impl"], "--subject impl"),
])  # fmt: skip
def test_what_cannot_be_shown_is_said_in_one_sentence(arguments, words, capsys):
    assert main(["repro", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said
