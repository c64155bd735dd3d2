"""Which guarantees a cell relies on, and whether its subject keeps them: the time of a broken promise is no time.

The weights of every cell are compared with one process's anyway (``verify``). That says that these batches came out
right; the clauses say that it was no luck of these batches, and that what surrounds them is as promised.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.bad_input import BadInput
from conformance.child import end_with_parent
from reports.records import RecordError, RecordFile, read

from ..plan.axes import ALONE, OVERLAPPED
from ..plan.cells import Cell
from ..workloads import SPARSE
from . import void

ABOUT_S = 15.0  # what judging them takes on a quiet machine; kept free in a budget
NO = "no"  # for --judged: measure without asking
_LIMIT_S = 900.0  # of judging, however busy the machine is
_ENDING_S = 30.0  # for the suite to take its ranks along when it is stopped
BUFFERED = frozenset({"convnet", "normed"})  # workloads with buffers
#: Checks of what no workload does: its parameters stay where they are, and as they are laid out, all of them are
#: trained, backwards go through the outputs, and buffers are there from the start.
NO_WORKLOAD_DOES = (
    "test_parameters_that_are_laid_out_anew_", "test_parameters_that_were_given_other_storage_",
    "test_backwards_that_reach_the_weights_one_by_one_", "test_gradients_that_the_program_moves_",
    "test_parameters_with_memory_in_common_", "test_a_closure_that_is_called_again_",
    "test_a_state_that_the_program_replaces_", "test_what_was_frozen_when_the_model_was_wrapped_",
    "test_parameters_that_come_and_go_", "test_a_penalty_that_is_differentiated_first_",
    "test_the_first_buffer_of_a_model_", "test_hooks_of_all_optimizers_", "test_a_graph_that_has_saved_",
    "test_an_optimizer_that_steps_all_parameters_together_", "test_tables_whose_rows_are_added_up_",
    "test_a_copied_optimizer_", "test_a_table_in_front_of_another_model_",
    "test_a_model_that_is_checkpointed_as_a_whole_may_have_uneven_", "test_a_fused_optimizer_meets_",
    "test_a_frozen_parameter_that_keeps_", "test_a_last_backward_that_leaves_a_layer_out_",
    "test_annotations_that_are_text_", "test_buckets_of_which_the_optimizer_has_nothing_",
    "test_what_one_parameter_has_lost_", "test_what_is_counted_in_a_group_",
    "test_an_optimizer_with_an_order_of_its_own_",
    "test_where_use_is_searched_too_an_argument_", "test_gradients_that_lie_in_one_memory_",
    "test_gradients_of_a_model_that_is_dropped_",
    "test_the_slope_of_a_model_with_buffers_", "test_gradients_of_a_backward_inside_the_forward_",
    "test_a_model_that_a_rank_passes_by_", "test_a_fused_optimizer_of_a_model_that_is_laid_out_anew_",
    "test_what_comes_behind_a_failed_context_", "test_a_layer_of_two_models_that_was_frozen_",
    "test_what_one_model_has_failed_in_", "test_buffers_of_another_size_",
    "test_a_buffer_that_is_made_once_", "test_what_a_program_does_after_a_backward_that_failed_",
)  # fmt: skip
_KEPT = ("passed", "unsupported", "not run", "suite error")  # the other outcomes break a clause
_TELLING = ("failed", "hung", "crashed")  # those: a failed check says what was seen, a crashed one what fell over


@dataclass(frozen=True)
class Broken:
    """A guarantee that a subject does not keep, as the suite's record says."""

    subject: str
    clause: str
    scenario: str
    witness: str
    backend: str = ""  # where it does not; empty: wherever
    outcome: str = "failed"  # of the check


@dataclass(frozen=True)
class Judged:
    """What is known of the subjects' guarantees; of a subject that nobody asked about nothing is held against it."""

    broken: tuple[Broken, ...] = ()
    source: str = ""  # where this is known from; empty: nobody was asked

    def against(self, cell: Cell) -> str:
        """Why a cell's time would be no time; empty if nothing speaks against it."""
        wanted = relied_on(cell)
        found = [
            each
            for each in self.broken
            if each.subject == cell.subject
            and each.backend in ("", cell.backend)
            and each.clause in wanted
            and not _elsewhere(each.scenario, cell.hook)
        ]
        if not found:
            return ""
        told = min(found, key=lambda each: _TELLING.index(each.outcome))
        return void.by_guarantee(told.clause, told.subject, told.witness)

    def footer(self, cells: Iterable[Cell]) -> dict[str, object]:
        """What a record keeps of it."""
        unkept = sorted({(each.subject, each.clause) for each in self.broken})
        return {"source": self.source, "clauses": relied_on_by(cells), "broken": [list(each) for each in unkept]}


def _elsewhere(scenario: str, hook: str) -> bool:
    """Whether what happens in this scenario of the suite happens with the other kind of overlap hook only."""
    interleaved = hook.endswith("interleaved")
    return ("sequential" if interleaved else "interleaved") in scenario


def relied_on(cell: Cell) -> tuple[str, ...]:
    """The clauses without which a cell's training could not come out right."""
    if cell.subject == "none" or cell.hook in ALONE:
        return ()
    found = ["DDP-025", "DDP-049"]  # equal at the start, and means of gradients afterwards
    found += ["DDP-057"] if cell.workload in SPARSE else []
    found += ["DDP-080"] if cell.workload in BUFFERED else []
    found += ["DDP-117"] if cell.bucket_view else []
    found += ["DDP-120"] if cell.settings == "best" else []
    found += ["DDPJ-007", "DDPJ-016"] if cell.strategy in ("join", "throwing", "after_join") else []
    found += ["DDPJ-035"] if cell.strategy == "after_join" else []
    found += ["JOIN-044"] if cell.strategy == "throwing" else []
    found += ["ZERO-008"] if cell.zero != "off" else []
    found += ["ZERO-012"] if cell.zero == "views" else []
    found += ["HOOK-019"] if cell.hook in OVERLAPPED else []  # not HOOK-018: odd layouts, which no workload has
    return tuple(found)


def relied_on_by(cells: Iterable[Cell]) -> list[str]:
    """All of these cells' clauses, each once."""
    return sorted({clause for cell in cells for clause in relied_on(cell)})


def judged_now(cells: Iterable[Cell], specs: Mapping[str, str]) -> Judged:
    """Let the suite judge the clauses that these cells rely on, on as few ranks as can show a breach.

    On each of the cells' backends for itself: on one GPU, world 1 is measured there and the others on the CPU.
    """
    backends: dict[str, list[Cell]] = {}
    for cell in cells:
        backends.setdefault(cell.backend, []).append(cell)
    found = [_judged_on(backend, members, specs) for backend, members in backends.items()]
    broken = tuple(each for one in found for each in one.broken)
    return Judged(broken, "; ".join(dict.fromkeys(one.source for one in found)))


def _judged_on(backend: str, cells: Sequence[Cell], specs: Mapping[str, str]) -> Judged:
    clauses = relied_on_by(cells)
    if not clauses:
        return Judged(source="no cell relies on a clause")
    world = min(2, max(cell.world for cell in cells))
    with tempfile.TemporaryDirectory(prefix="judged-") as folder:
        words = ["--tier", "quick", "--subject", ",".join(specs.values()), "--backend", backend]
        words += ["--worlds", str(world), "--select", ",".join(clauses), "--out", folder]
        said = ""
        try:
            said = _suite([sys.executable, "-m", "conformance", "run", *words])
            record = read(Path(folder, "conformance.jsonl"))
        except (RecordError, subprocess.TimeoutExpired) as error:
            last = (said.strip().splitlines() or ["it said nothing"])[-1]
            late = isinstance(error, subprocess.TimeoutExpired)
            why = f"it had not ended after {_LIMIT_S:.0f} s" if late else f"{last} ({error})"
            raise BadInput(
                f"the suite could not judge the clauses that these cells rely on: {why}; "
                f"run `make conformance`, or measure without asking by --judged {NO}"
            ) from error
        ranks = "1 rank" if world == 1 else f"{world} ranks"
        return _from(record, f"the suite at {ranks} on {backend}, before measuring")


def judged_before(path: Path, *backends: str, cells: Iterable[Cell] = ()) -> Judged:
    """What a record of the suite says, which must be of one of these backends and of all that the cells rely on."""
    try:
        record = read(path)
    except RecordError as error:
        raise BadInput(f"--judged {path}: {error}; give a record of `make conformance`, or {NO}") from error
    if record.header.get("of") != "conformance":
        raise BadInput(f"--judged {path} is no record of the suite; give one of `make conformance`, or {NO}")
    if not any(row["backend"] in backends for row in record.rows):
        where = " or ".join(backends)
        raise BadInput(f"--judged {path} has no results on {where}; give a record of that backend, or {NO}")
    answered = {
        (row["subject"], row["clause"])
        for row in record.rows
        if row["backend"] in backends and row["outcome"] != "suite error"
    }
    wanted = {(cell.subject, clause) for cell in cells for clause in relied_on(cell)}
    for subject, clause in sorted(wanted - answered):
        raise BadInput(
            f"--judged {path} does not say whether {subject} keeps {clause}, which these cells rely on; give a record "
            f"that does, or {NO}"
        )
    return _from(record, path.name, backends)


def _from(record: RecordFile, source: str, backends: Sequence[str] = ()) -> Judged:
    rows = (row for row in record.rows if row["outcome"] not in _KEPT and (not backends or row["backend"] in backends))
    broken = [
        Broken(row["subject"], row["clause"], row["scenario"], row["witness"], row["backend"], row["outcome"])
        for row in rows
        if not row["check"].startswith(NO_WORKLOAD_DOES)
    ]
    return Judged(tuple(broken), source)


def _suite(command: list[str]) -> str:
    """Run the suite, and take it along if this process is stopped meanwhile; returns what it said of troubles."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=end_with_parent,
    )
    try:
        _, said = process.communicate(timeout=_LIMIT_S)
    except BaseException:  # a deadline, an interruption: the suite ends its ranks when it is asked to
        process.terminate()
        try:
            process.communicate(timeout=_ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        raise
    return said
