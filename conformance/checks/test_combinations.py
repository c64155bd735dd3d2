"""Whatever a user combines under uneven inputs: always what one process computes. Each row under what it rests on."""

from conformance.api.checking import check
from conformance.fixtures.combinations import assert_as_alone, combinations, train_each

WORLDS = (2, 3, 4, 8)
HOOKS = ("all-reduce hook", "fp16 hook")
PLAIN = {"optimizer": ("plain",), "hook": ("no hook",), "graph": ("dynamic",), "use": ("all used",)}
UNUSED = ("some unused", "some unused here and there")
BY_ALL, BY_ACTIVE = {"divisor": ("by all",)}, {"divisor": ("by the active",)}


def worlds_of(combination):
    return combination.worlds


def trains_as_one_process(ranks, combination, schedules):
    def examine(several):
        assert_as_alone(combination, several, ranks(train_each, combination, several))

    schedules.examine(examine, fixed=[combination.schedule(ranks.world)], drawn=False)


@check("DDPJ-007", worlds=WORLDS, at=worlds_of, each=False, scenarios=combinations(**PLAIN, **BY_ALL))
def test_division_by_all_combines_with_everything(ranks, scenario, schedules):
    trains_as_one_process(ranks, scenario, schedules)


@check("DDPJ-008", worlds=WORLDS, at=worlds_of, each=False, scenarios=combinations(**PLAIN, **BY_ACTIVE))
def test_division_by_the_active_combines_with_everything(ranks, scenario, schedules):
    trains_as_one_process(ranks, scenario, schedules)


@check(
    "DDPJ-030", worlds=WORLDS, at=worlds_of, each=False,
    scenarios=combinations(**{**PLAIN, "use": UNUSED, "hook": ("no hook", *HOOKS)}, **BY_ALL),
)
def test_unused_parameters_combine_with_everything(ranks, scenario, schedules):
    trains_as_one_process(ranks, scenario, schedules)


@check(
    "DDPJ-032", worlds=WORLDS, at=worlds_of, each=False,
    scenarios=combinations(
        **{**PLAIN, "graph": ("static",), "use": ("all used", "some unused"), "hook": ("no hook", *HOOKS)}, **BY_ALL
    ),
)
def test_a_static_graph_combines_with_everything(ranks, scenario, schedules):
    trains_as_one_process(ranks, scenario, schedules)


@check(
    "DDPJ-033", worlds=WORLDS, at=worlds_of, each=False,
    scenarios=combinations(**{**PLAIN, "hook": HOOKS}, **BY_ALL),
)  # fmt: skip
def test_a_communication_hook_combines_with_everything(ranks, scenario, schedules):
    trains_as_one_process(ranks, scenario, schedules)


@check(
    "DDPJ-014", worlds=WORLDS, at=worlds_of, each=False,
    scenarios=combinations(**{**PLAIN, "hook": HOOKS}, **BY_ACTIVE),
)  # fmt: skip
def test_a_communication_hook_combines_with_division_by_the_active(ranks, scenario, schedules):
    trains_as_one_process(ranks, scenario, schedules)


@check("ZERO-022", worlds=WORLDS, at=worlds_of, each=False, scenarios=combinations(optimizer=("sharded",)))
def test_a_sharded_optimizer_combines_with_everything(ranks, scenario, schedules):
    trains_as_one_process(ranks, scenario, schedules)
