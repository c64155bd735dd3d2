"""The pytest plugin that runs checks over subjects, backends and worlds, and judges how they end.

    python -m pytest -p conformance.engine.plugin conformance/checks --subjects torch --worlds 2,3 --select 'JOIN-*'

is for working on checks; ``python -m conformance run`` drives the same plugin and adds the records and the report.
A listed deviation shows as xfailed; unsupported and not run show as skipped.
"""

from __future__ import annotations

import gc
import inspect
import os
from argparse import Namespace
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.assertion import util

from ..api.checking import Check, Ranks
from ..api.differences import difference
from ..bad_input import BadInput
from ..clauses import load
from ..ranks import backends
from ..ranks.origin import Sides
from ..results import BROKEN, Case, Outcome, Result
from . import inventory
from . import request as ask
from .items import Detached, Place, Scenario, called, case_of, check_of, is_in, is_simple, name_of, offer_of
from .parallel import Ahead, Ending, timed
from .report import render
from .run import WAITING, SuiteRun
from .schedule_search import Schedules, Smallest
from .verdict import NUMBERS, Verdict, judge

SUITE_RUN = pytest.StashKey[SuiteRun]()
AHEAD = pytest.StashKey["Ahead[Detached]"]()
LEFT_OUT = pytest.StashKey[dict[Case, pytest.Function]]()
ENDING = pytest.StashKey[tuple[Ending, Ranks, Sequence[tuple[int, ...]]]]()
DRIVER = pytest.StashKey["Driver"]()  # not there where pytest itself was asked


class Driver:
    """Has pytest run the checks of a run. ``before_first``: what to do when the first is about to be run."""

    def __init__(self, suite_run: SuiteRun, before_first: Callable[[], None] = lambda: None) -> None:
        self.suite_run, self.before_first = suite_run, before_first

    def run(self, files: Iterable[Path], root: Path, *more: str, plugins: Sequence[object] = ()) -> int:
        """With our own plugin only: what else is installed here must change nothing. No terminal: we report."""
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        os.environ.pop("PYTEST_ADDOPTS", None)
        arguments = [
            *map(str, files), "-p", __name__, "-p", "no:terminal", "-p", "no:cacheprovider", "-o", "addopts=",
            "--rootdir", str(root), "-o", "verbosity_assertions=2", "-o", "faulthandler_timeout=0", *more,
        ]  # fmt: skip
        return int(pytest.main(arguments, plugins=[self, *plugins]))

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Be where the plugin looks for it, before that is configured."""
        config.stash[DRIVER] = self


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--subjects", dest="subject", default="impl,torch", help="subjects, separated by commas")
    group.addoption("--backend", default="gloo", help="backend of the process groups")
    group.addoption("--worlds", default=None, help="world sizes, separated by commas")
    group.addoption("--tier", default="", help="quick or full instead of every case of what is asked for")
    group.addoption("--schedule", default=None, help="inputs per rank, for checks of schedules: only this one")
    group.addoption("--select", default="*", help="patterns of clause ids, separated by commas")
    group.addoption("--deadline", default=None, help="seconds for one run of ranks")
    group.addoption("--jobs", default="1", help="checks at a time")
    group.addoption("--deviations", action="append", default=[], help="a file of known deviations (may be repeated)")


def pytest_configure(config: pytest.Config) -> None:
    if DRIVER in config.stash:
        config.stash[SUITE_RUN] = config.stash[DRIVER].suite_run
    else:
        try:
            config.stash[SUITE_RUN] = _suite_run(config)
        except BadInput as error:
            raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(_SuiteErrors(config.stash[SUITE_RUN]))


def _suite_run(config: pytest.Config) -> SuiteRun:
    """The run that pytest itself was asked for."""
    catalogue = load()
    cited = list(inventory.by_clause([found for path in _paths(config) for found in inventory.declared(path)]))
    given = Namespace(**vars(config.option), check="*", poison=False)
    return SuiteRun(ask.asked(given, [*catalogue.by_id, *cited]), catalogue, elsewhere=cited)


def _paths(config: pytest.Config) -> list[Path]:
    """Where the checks are that pytest was given, besides the suite's own."""
    given = [config.invocation_params.dir / argument.split("::")[0] for argument in config.args]
    return [inventory.CHECKS, *(path for path in given if path.exists())]


# --- collecting -------------------------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    check: Check | None = getattr(metafunc.function, "check", None)
    if check is None:
        return
    name = metafunc.function.__name__
    if "ranks" not in metafunc.fixturenames:
        raise pytest.Collector.CollectError(f"check {name} takes no argument 'ranks', so no subject can be given to it")
    if bool(check.scenarios) != ("scenario" in metafunc.fixturenames):
        raise pytest.Collector.CollectError(f"check {name}: @check(scenarios=…) and an argument 'scenario' go together")
    places = _places(metafunc.config.stash[SUITE_RUN], check)
    metafunc.parametrize("ranks", places, indirect=True, ids=[str(place) for place in places])
    if check.scenarios:
        scenarios = [Scenario(name, value) for name, value in check.scenarios.items()]
        metafunc.parametrize("scenario", scenarios, indirect=True, ids=[scenario.name for scenario in scenarios])


def _places(suite_run: SuiteRun, check: Check) -> list[Place]:
    asked = suite_run.asked
    return [
        Place(subject, asked.backend, world)
        for subject in asked.subjects
        for world in asked.worlds
        if check.runs_at(world) and check.runs_on(backends.load(asked.backend))
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    suite_run = config.stash[SUITE_RUN]
    functions = [item for item in items if isinstance(item, pytest.Function)]
    suite_run.declared = {name_of(item): item.function.check for item in functions if hasattr(item.function, "check")}
    offered = [item for item in functions if is_in(suite_run, item)]
    chosen = suite_run.choose([offer_of(suite_run, item) for item in offered])
    kept: list[pytest.Item] = [item for item in offered if case_of(item) in chosen]
    config.stash[LEFT_OUT] = {case_of(item): item for item in offered if case_of(item) not in chosen}
    staying = set(kept)
    dropped = [item for item in items if item not in staying]
    items[:] = kept
    if dropped:
        config.hook.pytest_deselected(items=dropped)


class _SuiteErrors:
    """Remembers what went wrong in the suite itself, in hooks that do not know their session."""

    def __init__(self, suite_run: SuiteRun) -> None:
        self.suite_run = suite_run

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.suite_run.suite_errors.append(f"{report.nodeid}: {report.longreprtext.strip()}")

    def pytest_internalerror(self, excrepr: object) -> None:
        self.suite_run.suite_errors.append(f"an error inside the suite ended the run:\n{excrepr}")


# --- assertions that fail ---------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_assertrepr_compare(op: str, left: object, right: object) -> Generator[None, list[Any], list[Any]]:
    """What pytest says of a comparison, and below its first line what differs: a witness is made of these two."""
    found: list[list[str] | None] = yield
    return [_explained(op, left, right, next((lines for lines in found if lines), None))]


def _explain_between_items(config: pytest.Config) -> None:
    """Have the hook asked when a thread's assertion fails between two items, too: pytest asks it only during one."""

    def compared(op: str, left: object, right: object) -> str | None:
        found = config.hook.pytest_assertrepr_compare(config=config, op=op, left=left, right=right)
        lines = next((each for each in found if each), None)
        return "\n~".join(line.replace("\n", "\\n") for line in lines[:8]).replace("%", "%%") if lines else None

    util._reprcompare = compared
    config.add_cleanup(lambda: setattr(util, "_reprcompare", None))


def _explained(op: str, left: object, right: object, lines: list[str] | None) -> list[str] | None:
    try:
        told = difference(left, right) if op == "==" else ""
    except Exception:  # of values that cannot be compared by parts: the assertion has failed all the same
        told = ""
    if not told:
        return lines
    first, *rest = lines or [f"{left!r} {op} {right!r}"]
    return [first, f"{NUMBERS}{told}", *rest]


# --- running ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Ranks:
    place: Place = request.param
    suite_run = request.config.stash[SUITE_RUN]
    return suite_run.ranks(request.function.check, place.subject, place.world)


@pytest.fixture
def scenario(request: pytest.FixtureRequest) -> Any:
    return request.param.value


@pytest.fixture
def schedules(request: pytest.FixtureRequest, ranks: Ranks) -> Schedules:
    return Schedules(ranks.world, request.config.stash[SUITE_RUN].asked.schedule)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Before pytest's own loop what it needs; after it the cases that a deviation needs which has not shown."""
    works = not (session.testsfailed or session.config.option.collectonly or not session.items)
    if works:
        _begin(session)
    result = yield
    if works:
        for case in session.config.stash[SUITE_RUN].unsettled():
            item = session.config.stash[LEFT_OUT][case]
            item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
    return result


def _begin(session: pytest.Session) -> None:
    """Open the records, and let threads run ahead if more than one job was asked for."""
    config = session.config
    suite_run = config.stash[SUITE_RUN]
    if DRIVER in config.stash:
        config.stash[DRIVER].before_first()
    suite_run.prepare(sorted({item.module.__name__ for item in session.items if isinstance(item, pytest.Function)}))
    gc.freeze()  # all that is loaded and collected stays: looking through it again and again takes seconds
    gc.enable()
    suite_run.reporter.begin(len(session.items))
    if suite_run.asked.jobs > 1:
        session.items.sort(key=lambda item: not _may_break(item))  # waits for hangs: first, and first to be told
        functions = [item for item in session.items if isinstance(item, pytest.Function)]
        simple = [item for item in functions if is_simple(item)]
        items = [item for item in simple if suite_run.ended(case_of(item), check_of(item)) is None]
        calls = {item.nodeid: Detached(suite_run, item) for item in items}
        kinds = {key: (call.place.subject, call.place.world) for key, call in calls.items() if call.may_reuse}
        _explain_between_items(config)
        config.stash[AHEAD] = Ahead(suite_run.asked.jobs + WAITING, suite_run.turns, calls, kinds)


def _may_break(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or not is_simple(item):
        return False
    return item.config.stash[SUITE_RUN].may_break(case_of(item), check_of(item))


class TakenOver(Exception):
    """The case was found broken by the run that this one goes on with."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run one check, or take the ending from the thread that ran it ahead, and keep it for the judgement."""
    used, tried = pyfuncitem.funcargs["ranks"], pyfuncitem.funcargs.get("schedules")
    assert isinstance(used, Ranks)
    earlier = pyfuncitem.config.stash[SUITE_RUN].ended(case_of(pyfuncitem), check_of(pyfuncitem))
    if earlier is not None:
        if earlier.verdict.outcome in BROKEN | {Outcome.SUITE_ERROR}:
            raise TakenOver(earlier.verdict.witness)
        return True
    ahead: Ahead[Detached] | None = pyfuncitem.config.stash.get(AHEAD, None)
    if ahead is not None and pyfuncitem.nodeid in ahead.calls:
        ending = ahead.ending(pyfuncitem.nodeid)
        call = ahead.calls[pyfuncitem.nodeid]
        used, tried = call.ranks or used, call.schedules or tried
    else:
        wanted = inspect.signature(pyfuncitem.obj).parameters
        arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}
        ending = timed(lambda: called(pyfuncitem, used, arguments))
    pyfuncitem.stash[ENDING] = (ending, used, tried.suspects if isinstance(tried, Schedules) else [])
    if ending.error is not None:
        _raise(ending.error, DRIVER in pyfuncitem.config.stash)
    return True


def _raise(error: BaseException, reported_elsewhere: bool) -> NoReturn:
    """Fail the test; without a traceback of pytest's where the suite's own report has it all.

    Python 3.11 cannot parse source on two threads at a time (python/cpython#106905), as pytest does for a traceback.
    """
    if reported_elsewhere and isinstance(error, Exception):
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    raise error


# --- judging ----------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the ending of a check into results, and pytest's report into one that says the same."""
    report = yield
    if not isinstance(item, pytest.Function):
        return report
    suite_run = item.config.stash[SUITE_RUN]
    if call.when == "teardown":
        if report.failed:
            suite_run.suite_errors.append(f"{item.nodeid}: could not clean up: {report.longreprtext.strip()}")
    elif call.when == "call" or not report.passed:
        _show(report, _results(suite_run, item, call))
    return report


def _results(suite_run: SuiteRun, item: pytest.Function, call: pytest.CallInfo[None]) -> list[Result]:
    case, check = case_of(item), check_of(item)
    earlier = suite_run.ended(case, check)
    if earlier is not None:
        return suite_run.add(case, check, earlier.verdict, earlier.seconds, earlier.notes)
    if ENDING in item.stash:
        ending, used, suspects = item.stash[ENDING]
        verdict = judge(ending.error, used.last_run, _sides(item, used))
        if verdict.outcome in BROKEN and not suite_run.expects(case, check, verdict):
            verdict = _looked_at_again(suite_run, item, used, suspects, verdict)
        return suite_run.add(case, check, verdict, ending.seconds, used.notes)
    error = call.excinfo.value if call.excinfo is not None else None  # it did not get past its fixtures or marks
    return suite_run.add(case, check, judge(error), call.duration, ())


def _sides(item: pytest.Function, used: Ranks) -> Sides:
    """Whose code is whose, for an error that the check raised in this process."""
    return Sides.of(item.function, used.subject, used.subject_spec)


def _looked_at_again(
    suite_run: SuiteRun, item: pytest.Function, used: Ranks, suspects: Sequence[tuple[int, ...]], verdict: Verdict
) -> Verdict:
    """A break that is news is worth a second look: at which smallest schedule, or where the ranks parted."""
    if suspects and suite_run.asked.schedule is None:
        return _smallest(suite_run, item, used, suspects, verdict)
    return verdict if verdict.outcome is Outcome.FAILED else _with_trace(suite_run, item, used, verdict)


def _smallest(
    suite_run: SuiteRun, item: pytest.Function, used: Ranks, suspects: Sequence[tuple[int, ...]], verdict: Verdict
) -> Verdict:
    """The verdict on the smallest schedule that breaks the check; the given one if none was found in time."""
    if not is_simple(item) or not suite_run.may_look_again():
        return verdict
    call = Detached(suite_run, item, below=suspects)
    error = timed(call).error
    if not isinstance(error, Smallest):
        return verdict
    found = judge(error.error, call.ranks.last_run if call.ranks is not None else None, _sides(item, used))
    return found.at_schedule(error.schedule)


def _with_trace(suite_run: SuiteRun, item: pytest.Function, used: Ranks, verdict: Verdict) -> Verdict:
    """A hang or crash that is news is looked at once more with every collective recorded: where did the ranks part?"""
    recorded = used.last_run is not None and any(end.trace for end in used.last_run.outcomes)
    if recorded or not is_simple(item) or not suite_run.may_look_again():
        return verdict
    call = Detached(suite_run, item, always_trace=True)
    ending = timed(call)
    again = judge(ending.error, call.ranks.last_run if call.ranks is not None else None, _sides(item, used))
    return again if again.outcome is verdict.outcome else verdict


def _show(report: pytest.TestReport, results: list[Result]) -> None:
    """A listed deviation is an expected failure to pytest; what gave no answer is skipped."""
    outcome = results[0].outcome
    if all(result.listed for result in results):
        report.outcome = "skipped"
        report.wasxfail = f"listed deviation: {results[0].deviation}"
    elif outcome in (Outcome.UNSUPPORTED, Outcome.NOT_RUN):
        report.outcome = "skipped"
        report.longrepr = (str(report.location[0]), report.location[1] or 0, f"{outcome}: {results[0].witness}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Judge the run; pytest leaves with the judgement's exit status."""
    ahead = session.config.stash.get(AHEAD, None)
    if ahead is not None:
        ahead.stop()
    suite_run = session.config.stash[SUITE_RUN]
    interrupted = exitstatus == pytest.ExitCode.INTERRUPTED and not suite_run.suite_errors
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or interrupted:
        session.exitstatus = suite_run.end(interrupted).exit_status
    suite_run.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The matrix, below pytest's own summary."""
    suite_run = terminalreporter.config.stash[SUITE_RUN]
    if suite_run.judgement is not None and suite_run.results:
        for line in render(suite_run.judgement, suite_run.catalogue).splitlines():
            terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    if SUITE_RUN in config.stash:
        config.stash[SUITE_RUN].close()
