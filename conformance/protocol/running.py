"""One configuration from its start: a rank's program, one run of it, and the search over all runs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ..subjects import Subject
from . import properties, surroundings
from .configurations import Configuration
from .messages import Network
from .programs import PROGRAMS, Note, given
from .properties import Report
from .scheduling import Simulation, taking_long
from .search import Explorer, Found


def explore(subject: Subject, configuration: Configuration, more: Callable[[], bool] = lambda: True) -> Found:
    """Take every transition of every state of the configuration, as long as ``more`` says so."""
    whole, states = Found(complete=True), set[int]()
    with surroundings.simulated(), _quiet():
        for suspect in range(configuration.world) if configuration.fails else (None,):
            begun = time.perf_counter()
            explorer = Explorer(suspect, reduced=configuration.reduced)
            found = explorer.explore(_Runs(subject, configuration, suspect).once, more)
            found.seconds = time.perf_counter() - begun
            whole.add(found)
            states |= explorer.states
            if found.violation:
                break
    whole.states = len(states)
    return whole


@contextmanager
def _quiet() -> Iterator[None]:
    """One thread for each rank and no more; warnings are no part of the protocol."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_num_threads(threads)


class _Runs:
    """Makes runs of one configuration in which one rank may fail."""

    def __init__(self, subject: Subject, configuration: Configuration, suspect: int | None) -> None:
        self._subject = subject
        self._of = configuration
        self._suspect = suspect
        self._program = PROGRAMS[configuration.program]
        self._expected = self._program.expected(configuration.inputs, configuration.divides_by_all)
        self._alone_from = sorted(configuration.inputs)[-2]  # from this iteration on one rank is alone

    def once(self, explorer: Explorer) -> str:
        """One run; how it ended, or empty where that is known."""
        network = Network(self._of.world)
        logs: list[list[Note]] = [[] for _ in self._of.inputs]
        simulation = Simulation(
            self._of.world, lambda rank: self._live(simulation, logs, rank), network, explorer, self._suspect
        )
        network.simulation = simulation
        surroundings.set_up(network)
        simulation.run()
        if simulation.pruned:
            return ""
        throws = self._of.throws and len(set(self._of.inputs)) > 1
        end, wrong = properties.judged(simulation, network, self._expected, logs, throws=throws)
        if wrong:
            explorer.found.violation = f"{self._of}: {wrong}\n{describe(simulation)}"
        return end

    def _live(self, simulation: Simulation, logs: list[list[Note]], rank: int) -> Report:
        trainer = self._program.make(self._subject, rank)
        logs[rank] = trainer.log
        with self._subject.Join(
            trainer.joinables,
            throw_on_early_termination=self._of.throws,
            divide_by_initial_world_size=self._of.divides_by_all,
        ):
            simulation.entered()
            for iteration in range(self._of.inputs[rank]):
                what = f"iteration {iteration}"
                simulation.point(taking_long(what) if iteration >= self._alone_from else what)
                trainer.iterate(iteration, given(rank, iteration))
            simulation.point("end of the inputs")
        return Report(trainer.log, trainer.state())


def describe(simulation: Simulation) -> str:
    """The schedule of a run and where each rank stands, for people."""
    lines = [f"{transition}: {what}" for transition, what in zip(simulation.path, simulation.taken, strict=True)]
    lines.append(f"then {simulation.whereabouts()}")
    errors = [(rank.number, rank.error) for rank in simulation.ranks if rank.error is not None]
    lines += [f"rank {number} raised {properties.text_of(error)}" for number, error in errors]
    return "\n".join(f"    {line}" for line in lines)
