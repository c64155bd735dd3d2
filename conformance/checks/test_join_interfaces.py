"""Join, Joinable, JoinHook and the config as interfaces: what they are called, demand and start out as."""

import inspect

import torch
from torch import nn

from conformance.api.checking import MANY, check
from conformance.api.schedules import promised_log, shapes
from conformance.fixtures.joinables import housed, module, recorder
from conformance.ranks import caught

DISABLED = (False, False, False)
MEMBERS = ("__init__", "join_hook", "join_device", "join_process_group")


def public_names(ctx):
    exported = ctx.subject.join
    return sorted(exported.__all__), [name for name in exported.__all__ if getattr(exported, name, None) is None]


@check("JOIN-001", worlds=(1,))
def test_the_join_module_exports_exactly_three_names(ranks):
    [(names, missing)] = ranks(public_names, init=False)
    assert names == ["Join", "JoinHook", "Joinable"]
    assert missing == []


def complete_members(ctx):
    joinable, hook = ctx.subject.Joinable, ctx.subject.JoinHook
    return {
        "__init__": lambda self: joinable.__init__(self),
        "join_hook": lambda _self, **_kwargs: hook(),
        "join_device": property(lambda _self: ctx.device),
        "join_process_group": property(lambda _self: ctx.group),
    }


def instantiate_without(ctx, missing):
    members = {name: member for name, member in complete_members(ctx).items() if name != missing}
    return caught(type("Incomplete", (ctx.subject.Joinable,), members))


def build_incomplete_joinables(ctx):
    return {
        "nothing": instantiate_without(ctx, None),
        "everything": caught(ctx.subject.Joinable),
        **{missing: instantiate_without(ctx, missing) for missing in MEMBERS},
    }


@check("JOIN-002", worlds=(1,))
def test_a_joinable_that_lacks_any_of_its_four_members_cannot_be_made(ranks):
    [errors] = ranks(build_incomplete_joinables, init=False)
    assert errors.pop("nothing") is None
    assert errors["everything"] is not None
    assert errors["everything"].is_a(TypeError)
    for missing in MEMBERS:
        assert errors[missing] is not None, f"a joinable without {missing} was made"
        assert errors[missing].is_a(TypeError), errors[missing]


def look_at_a_fresh_joinable(ctx):
    fresh = recorder(ctx)
    config = fresh._join_config
    return tuple(config), isinstance(config, ctx.subject._JoinConfig), fresh.step() is None, fresh.log


@check("JOIN-003", worlds=(1,))
def test_a_fresh_joinable_is_disabled_and_steps_without_any_process_group(ranks):
    [(config, is_a_config, silent, log)] = ranks(look_at_a_fresh_joinable, init=False)
    assert config == DISABLED
    assert is_a_config, "its config is no _JoinConfig"
    assert silent, "its notification returned something"
    assert log == ["a step"]


def mix_with_other_bases(ctx):
    class Other:
        def __init__(self):
            self.reached = True
            super().__init__()

    class JoinableFirst(ctx.subject.Joinable, Other):
        join_device = property(lambda _self: ctx.device)
        join_process_group = property(lambda _self: ctx.group)

        def __init__(self):
            ctx.subject.Joinable.__init__(self)

        def join_hook(self, **_kwargs):
            return ctx.subject.JoinHook()

    mixed = module(ctx)
    return {
        "reached": JoinableFirst().reached,
        "configs": [tuple(each._join_config) for each in (JoinableFirst(), mixed)],
        "parameters": sorted(name for name, _ in mixed.named_parameters()),
        "state": sorted(mixed.state_dict()),
        "is a module": isinstance(mixed, nn.Module),
        "output": tuple(mixed.inner(torch.ones(1, 2)).shape),
    }


@check("JOIN-004", worlds=(1,))
def test_the_base_constructor_passes_control_on_to_the_other_bases(ranks):
    [seen] = ranks(mix_with_other_bases, init=False)
    assert seen["reached"], "the constructor of the base after Joinable was not called"
    assert seen["configs"] == [DISABLED, DISABLED]


@check("JOIN-004", worlds=(1,))
def test_a_module_stays_a_whole_module_when_it_is_a_joinable_too(ranks):
    [seen] = ranks(mix_with_other_bases, init=False)
    assert seen["is a module"], "it is no nn.Module any more"
    assert seen["parameters"] == seen["state"] == ["inner.bias", "inner.weight"]
    assert seen["output"] == (1, 2)


def join_a_module(ctx, schedule):
    mixed = module(ctx)
    with ctx.subject.Join([mixed]):
        for _ in range(schedule[ctx.rank]):
            mixed.step()
    return mixed.log


@check("JOIN-004", worlds=MANY)
def test_a_module_that_is_a_joinable_joins_like_any_other(ranks):
    schedule = tuple(1 + rank for rank in range(ranks.world))
    expected = [promised_log(schedule, rank, ["module"]) for rank in range(ranks.world)]
    assert ranks(join_a_module, schedule) == expected


def join_with_plain_methods(ctx, which):
    base = housed(ctx)

    def plain(self):
        return {"join_device": self.device, "join_process_group": self.group}[which]

    called = type("Called", (base,), {which: plain, "join_hook": lambda _self, **_kwargs: ctx.subject.JoinHook()})

    def use():
        joinable = called("a")
        with ctx.subject.Join([joinable]):
            joinable.notify()

    return caught(use)


@check("JOIN-005", worlds=(1, 2))
def test_a_device_or_group_given_as_a_method_is_refused(ranks):
    for which in ("join_device", "join_process_group"):
        for error in ranks(join_with_plain_methods, which):
            assert error is not None, f"{which} as a plain method was accepted silently"
            assert any(error.is_a(kind) for kind in (TypeError, ValueError, AttributeError))


def read_as_properties(ctx):
    joinable = recorder(ctx)
    with ctx.subject.Join([joinable]):
        joinable.step()
    abstract = [inspect.getattr_static(ctx.subject.Joinable, name) for name in ("join_device", "join_process_group")]
    return [isinstance(each, property) for each in abstract], joinable.log


@check("JOIN-005")
def test_device_and_group_are_properties(ranks):
    for properties, log in ranks(read_as_properties):
        assert properties == [True, True]
        assert log == ["a step", "a post True"]


def call_base_hooks(ctx):
    hook = ctx.subject.JoinHook()
    returned = hook.main_hook(), hook.post_hook(True), hook.post_hook(is_last_joiner=False)
    return [each is None for each in returned]


@check("JOIN-006", worlds=(1,))
def test_the_base_hook_can_be_made_and_does_nothing(ranks):
    assert ranks(call_base_hooks, init=False) == [[True, True, True]]


def join_with_half_hooks(ctx, schedule, override):
    log = []
    members = {
        "main_hook": lambda _self: log.append("main"),
        "post_hook": lambda _self, is_last_joiner: log.append(f"post {is_last_joiner}"),
    }
    half = type("Half", (ctx.subject.JoinHook,), {override: members[override]} if override else {})
    joinable = type("Joining", (housed(ctx),), {"join_hook": lambda _self, **_kwargs: half()})("a")
    with ctx.subject.Join([joinable]):
        for _ in range(schedule[ctx.rank]):
            joinable.notify()
    return log


@check("JOIN-006")
def test_a_hook_may_override_only_one_of_its_two_methods(ranks):
    schedule = tuple(1 + rank for rank in range(ranks.world))
    mains = [["main"] * (ranks.world - 1 - rank) for rank in range(ranks.world)]
    posts = [[f"post {rank == ranks.world - 1}"] for rank in range(ranks.world)]
    assert ranks(join_with_half_hooks, schedule, "main_hook") == mains
    assert ranks(join_with_half_hooks, schedule, "post_hook") == posts
    assert ranks(join_with_half_hooks, schedule, None) == [[]] * ranks.world


def look_at_the_config(ctx):
    config = ctx.subject._JoinConfig
    made = config(True, False, True)
    named = config(enable=False, throw_on_early_termination=True, is_first_joinable=False)
    return {
        "fields": config._fields,
        "equal": made == (True, False, True) and isinstance(made, tuple),
        "by name": tuple(named),
        "assigning": [caught(setattr, made, name, False) for name in config._fields],
        "after": tuple(made),
    }


@check("JOIN-007", worlds=(1,))
def test_the_config_is_an_immutable_record_of_three_flags(ranks):
    [seen] = ranks(look_at_the_config, init=False)
    assert seen["fields"] == ("enable", "throw_on_early_termination", "is_first_joinable")
    assert seen["equal"], "it is no tuple that equals (True, False, True)"
    assert seen["by name"] == (False, True, False)
    assert all(error is not None and error.is_a(AttributeError) for error in seen["assigning"]), seen["assigning"]
    assert seen["after"] == (True, False, True)


def make_a_disabled_config(ctx):
    config = ctx.subject._JoinConfig
    is_static = isinstance(inspect.getattr_static(config, "construct_disabled_join_config"), staticmethod)
    made = config.construct_disabled_join_config()
    return is_static, isinstance(made, config), tuple(made)


@check("JOIN-008", worlds=(1,))
def test_the_disabled_config_comes_from_a_static_factory(ranks):
    assert ranks(make_a_disabled_config, init=False) == [(True, True, DISABLED)]


def pass_keywords(ctx, keywords, schedule):
    a, b, silent = recorder(ctx), recorder(ctx, "b"), module(ctx)  # the module takes no notice of keywords
    with ctx.subject.Join([a, b, silent], **keywords):
        for _ in range(schedule[ctx.rank]):
            a.step(), b.step(), silent.step()
    return a.heard, b.heard


@check("JOIN-009")
def test_every_joinable_is_handed_the_same_keywords(ranks):
    schedule = shapes(ranks.world)["rank 0 last"]
    several = ({}, {"foo": 3, "bar": "x"}, {"divide_by_initial_world_size": False})
    for keywords, told in ranks.each(pass_keywords, several, schedule):
        assert told == [([keywords], [keywords])] * ranks.world


def pass_keywords_past_ddp(ctx):
    model = ctx.subject.DistributedDataParallel(nn.Linear(1, 1))
    seen = recorder(ctx)
    with ctx.subject.Join([model, seen], foo=3):
        model(torch.ones(1, 1)).sum().backward()
    return seen.heard


@check("JOIN-009", worlds=(1, 2))
def test_ddp_takes_no_offence_at_keywords_meant_for_others(ranks):
    assert ranks(pass_keywords_past_ddp) == [[{"foo": 3}]] * ranks.world
