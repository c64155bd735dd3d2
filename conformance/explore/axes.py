"""What a program may choose, one value on each axis, and which choices go together: legality as rules with clauses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations

Choices = Mapping[str, str]  # axis to value; an axis that is left out has its plain value
Feature = tuple[str, str]  # an axis and one of its values that are not plain

#: The first value of every axis is the plain one.
AXES: dict[str, tuple[str, ...]] = {
    # ranks and schedules
    "world": ("2", "1", "3", "4"),
    "context": ("none", "ddp.join", "Join", "not enabled"),
    "schedule": ("even", "uneven", "none on some"),
    "divisor": ("by all", "by the active"),
    "early end": ("shadowed", "throws"),
    "blocks": ("one", "two", "second without context", "second turned"),
    "group": ("world", "of its own", "subgroup"),
    "mode": ("usual", "strict"),
    # the model
    "wiring": ("side by side", "chained"),
    "convolution": ("none", "plain", "channels_last"),
    "norm": ("none", "batch", "layer"),
    "further layer": ("none", "recurrent", "attention", "weight norm", "spectral norm"),
    "table": ("none", "dense", "sparse", "sparse bag"),
    "shared": ("none", "tied"),
    "frozen": ("none", "one layer", "between blocks", "until the second block", "whole numbers", "shared weight"),
    "use": ("all", "never", "without gradient", "by rank", "by iteration", "by both"),
    "checkpoint": ("none", "once", "twice", "reentrant", "the whole model"),
    "types": ("float", "double", "half", "bfloat16", "mixed", "complex"),
    "gradient dtype": ("the parameter's", "wider"),
    "tensors": ("few", "many small", "transposed", "numbers"),
    "buffers": ("none", "float", "integer", "double", "replaced", "not persistent"),
    "call": ("positional", "keyword", "container"),
    "outputs": ("one", "tuple", "dictionary", "dataclass", "one outside the loss"),
    "loss": ("of outputs", "and weights", "and slopes"),
    "batches": ("alike", "of other sizes", "sometimes empty"),
    "autocast": ("no", "around forwards"),
    # arguments of the constructor
    "buckets": ("usual", "tiny", "list"),
    "unused": ("refused", "found", "skipped"),
    "graph": ("dynamic", "static"),
    "gradients": ("copies", "views"),
    "start": ("compared", "init_sync=False"),
    "buffer sync": ("usual", "broadcast_buffers=False", "forward_sync_buffers=False"),
    "buffer hook": ("none", "before forward", "after forward"),
    "copying": ("usual", "batched"),
    "lowered": ("no", "bfloat16", "bfloat16, reduced in full"),
    "delayed": ("none", "one layer"),
    "ignored": ("none", "one layer"),
    # hooks
    "registered": ("at once", "between blocks"),
    "hook": ("none", "allreduce", "builtin", "fp16", "wrapped", "user", "asynchronous", "PowerSGD", "post-local"),
    "parameter hooks": ("none", "of gradients", "behind accumulation"),
    "module hooks": ("none", "of a layer", "of the wrapper"),
    "step hooks": ("none", "counting", "halving"),
    # what happens between and in iterations
    "evaluation": ("none", "by all", "in inference mode", "by one", "alone in the wrapper"),
    "accumulation": ("none", "no_sync", "every second", "uncleared"),
    "forwards": ("one", "two", "skipped backward", "failing", "two backwards"),
    "backward": ("whole", "of all by name", "in two parts", "behind a look"),
    "cleared": ("to None", "to zeros", "in part", "after the forward"),
    "reworked": ("no", "in place", "replaced", "dropped in part"),
    "clipped": ("no", "by norm", "by value"),
    "data": ("kept", "assigned", "one assigned", "gradients assigned", "laid out anew"),
    "state": ("kept", "saved and loaded", "into a new optimizer"),
    "cast": ("never", "through the wrapper", "past the wrapper"),
    "moved": ("no", "to another group"),
    "copied": ("no", "pickled", "deeply"),
    "second model": ("none", "beside", "behind"),
    "joinable": ("none", "listed first", "listed last"),
    "averaged": ("no", "of the module", "of the wrapper"),
    # optimizers
    "optimizer": ("sgd", "momentum", "decay", "adam", "counting", "maximizing", "fused"),
    "beside": ("nothing", "another optimizer"),
    "attached": ("none", "to a layer"),
    "rate": ("constant", "scheduled"),
    "closure": ("none", "around the iteration"),
    "param groups": ("one", "added later"),
    "sharded": ("no", "zero", "bucket views"),
    "listed": ("model first", "optimizer first"),
    "overlapped": ("no", "sequential", "interleaved"),
    "overlap": ("usual", "shard_buckets", "reduce_scatter", "both"),
}

FEATURES: tuple[Feature, ...] = tuple((axis, value) for axis, values in AXES.items() for value in values[1:])


@dataclass(frozen=True)
class Rule:
    """A program with all of one of ``given`` must have ``needs``, or if that is empty must not be."""

    given: tuple[Mapping[str, tuple[str, ...]], ...]
    clause: str  # empty: no promise is involved, such a program cannot be written
    why: str
    needs: Mapping[str, tuple[str, ...]]  # the first value of each is taken where nothing else is said

    def applies(self, choices: Choices) -> bool:
        return any(
            all(value_of(choices, axis) in values for axis, values in given.items()) for given in self.given
        )  # fmt: skip


def value_of(choices: Choices, axis: str) -> str:
    """The value on an axis, the plain one where nothing is chosen."""
    return choices.get(axis, AXES[axis][0])


def _values(axis: str, text: str) -> tuple[str, ...]:
    if text == "*":
        return AXES[axis][1:]
    values = tuple(text.split(" | "))
    unknown = set(values) - set(AXES[axis])
    if unknown:
        raise ValueError(f"{axis} has no value {sorted(unknown)}")
    return values


def _side(pattern: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {axis: _values(axis, text) for axis, text in pattern.items()}


def _needs(clause: str, why: str, *sides: Mapping[str, str]) -> Rule:
    """The last of ``sides`` is what each of the others needs."""
    *given, needs = sides
    return Rule(tuple(map(_side, given)), clause, why, _side(needs))


def _never(clause: str, why: str, *given: Mapping[str, str]) -> Rule:
    return Rule(tuple(map(_side, given)), clause, why, {})


def _sharded(also: dict[str, str]) -> tuple[dict[str, str], ...]:
    """Beside a sharded optimizer, be it stepped by the program or in the backward."""
    return {"sharded": "*", **also}, {"overlapped": "*", **also}


def _each(given: dict[str, str], *axes: str) -> tuple[dict[str, str], ...]:
    """With anything on one of these axes."""
    return tuple({**given, axis: "*"} for axis in axes)


_IN_TIME = "between blocks | until the second block"
_SPARSE = "sparse | sparse bag"
_LOW = "half | bfloat16"
_A_CONTEXT = {"context": "ddp.join | Join"}
_TWO_BLOCKS = {"blocks": "two | second without context | second turned"}
_ROUNDING = "wiring", "norm", "convolution", "further layer"
_BY_TURNS = "no_sync | every second"
_A_SEARCH = {"unused": "found | skipped"}

RULES: tuple[Rule, ...] = (
    # contexts
    _needs("DDP-020", "without a context every rank makes equally many iterations", {"schedule": "*"}, _A_CONTEXT),
    _needs("DDPJ-008", "the divisor is a keyword of a context", {"divisor": "*"}, _A_CONTEXT),
    _needs("JOIN-041", "throwing is a keyword of a context", {"early end": "*"}, _A_CONTEXT),
    _needs(
        "DDPJ-034",
        "a second block differs from the first if that had a context",
        {"blocks": "second without context"},
        _A_CONTEXT,
    ),
    _needs("", "what is turned is uneven", {"blocks": "second turned"}, {"schedule": "uneven | none on some"}),
    _never("", "one rank is never out of inputs before itself", {"world": "1", "schedule": "*"}),
    _never("DDPJ-013", "what follows a thrown error is another program", {"early end": "throws", "blocks": "*"}),
    _needs("", "a subgroup of several ranks needs three", {"group": "subgroup"}, {"world": "3 | 4"}),
    # use
    _needs(
        "DDP-062",
        "a parameter without a gradient must be looked for",
        {"use": "by rank | by iteration | by both"},
        _A_SEARCH | {"graph": "dynamic"},
    ),
    _needs(
        "DDP-062",
        "a parameter without a gradient must be looked for",
        {"use": "never | without gradient", "graph": "dynamic"},
        _A_SEARCH,
    ),
    _needs(
        "DDP-101",
        "a parameter without a gradient must be looked for",
        {"outputs": "one outside the loss", "graph": "dynamic"},
        _A_SEARCH,
    ),
    _needs(
        "DDP-116",
        "skipping asks for the same use on all ranks, throughout training",
        {"use": "by rank | by iteration | by both", "unused": "skipped"},
        {"unused": "found"},
    ),
    _needs("DDP-116", "skipping belongs to looking for unused parameters", {"unused": "skipped"}, {"graph": "dynamic"}),
    _never(
        "DDP-068",
        "reentrant checkpoints and unused parameters need a static graph",
        {"checkpoint": "reentrant", "unused": "*", "graph": "dynamic"},
    ),
    _never(
        "DDP-059",
        "what a joined rank adds to gradients that were kept is not said",
        {"accumulation": "uncleared", "schedule": "*"},
    ),
    _never(
        "DDP-077",
        "what a local backward used counts as used in the next iteration",
        {"forwards": "two backwards", "use": "by iteration | by both"},
        {"forwards": "two backwards", "frozen": _IN_TIME},
        {"accumulation": "every second", "frozen": _IN_TIME},
    ),
    _never(
        "DDP-069",
        "a layer checkpointed in two forwards of one backward is checkpointed twice",
        {"checkpoint": "reentrant", "forwards": "two"},
    ),
    _needs(
        "DDP-069",
        "a weight inside and outside of a reentrant checkpoint arrives twice",
        {"checkpoint": "reentrant", "shared": "tied"},
        {"checkpoint": "reentrant", "loss": "and weights"},
        {"graph": "static"},
    ),
    # native mixed precision
    _needs("DDP-135", "what is lowered is of single precision", {"lowered": "*"}, {"types": "float"}),
    _never("DDP-141", "the upcast takes the only place for a hook", {"lowered": "*", "hook": "*"}),
    _never("DDP-141", "the overlapped step needs the place for a hook", {"lowered": "*", "overlapped": "*"}),
    _never("DDP-134", "the cast is for the dtype of the parameters", {"lowered": "*", "cast": "*"}),
    _never("DDP-136", "the result is of the parameter's dtype", {"lowered": "*", "gradient dtype": "*"}),
    _never("DDP-138", "ignored layers compute in their own dtype", {"lowered": "*", "ignored": "*"}),
    _never("DDP-141", "the gradients of delayed parameters may be refused", {"lowered": "*", "delayed": "*"}),
    _never("", "sparse halves are not summed on a CPU", {"lowered": "*", "table": _SPARSE}),
    _never("", "statistics would have another dtype than what they are taken of", {"lowered": "*", "norm": "*"}),
    _never("", "chained layers magnify what low precision rounds", {"lowered": "*", "wiring": "chained"}),
    _never("", "one process would compute again in full precision", {"lowered": "*", "checkpoint": "*"}),
    _never("DDP-135", "nothing is lowered past the wrapper", {"lowered": "*", "evaluation": "by one"}),
    # losses
    _needs("DDP-062", "a loss past the outputs uses what all ranks use", {"loss": "and weights"}, {"use": "all"}),
    _never("", "a table has sparse and dense gradients then", {"loss": "and weights", "table": _SPARSE}),
    _never("", "a loss is real", {"loss": "and weights", "types": "complex"}),
    _never("DDP-068", "reentrant checkpoints know no slopes", {"loss": "and slopes", "checkpoint": "reentrant"}),
    _never("DDP-061", "the second backward is of the outputs alone", {"loss": "*", "forwards": "two backwards"}),
    # buffers
    _needs(
        "DDP-026",
        "with init_sync=False the user makes the ranks equal; buffers then need nothing",
        {"start": "*"},
        {"ignored": "none"},
    ),
    _never("DDP-095", "it may still write when all is repeated", {"buffer hook": "*", "checkpoint": "the whole model"}),
    _never("DDPJ-026", "uneven inputs with a buffer hook may be refused", {"buffer hook": "*", **_A_CONTEXT}),
    _needs("DDP-096", "a hook is for buffers", {"buffer hook": "*"}, {"buffers": "float | integer | double"}),
    _never("DDP-096", "a hook needs synchronised buffers", {"buffer hook": "*", "buffer sync": "*"}),
    _never(
        "DDP-096",
        "a hook is not called in forwards that do not synchronise",
        {"buffer hook": "*", "evaluation": "by all | in inference mode | alone in the wrapper"},
        {"buffer hook": "*", "accumulation": _BY_TURNS},
    ),
    _never("DDP-160", "pickling drops the hook", {"buffer hook": "*", "copied": "*"}),
    _needs("COMM-007", "a hook is registered, before or after the first block", {"registered": "*"}, {"hook": "*"}),
    _needs("", "it is registered between two blocks", {"registered": "*"}, _TWO_BLOCKS),
    _never("DDP-165", "a hook divides by what is left of its own group", {"hook": "*", "moved": "*"}),
    _never(
        "DDP-160",
        "a hook with a group as its state may keep a model from being copied",
        {"hook": "*", "copied": "*"},
        {"hook": "*", "averaged": "of the wrapper"},
    ),
    _needs(
        "DDP-047",
        "a forward without gradients needs nobody where no buffers are synchronised",
        {"evaluation": "alone in the wrapper", "buffers": "*"},
        {"evaluation": "alone in the wrapper", "norm": "batch"},
        {"evaluation": "alone in the wrapper", "further layer": "spectral norm"},
        {"buffer sync": "broadcast_buffers=False | forward_sync_buffers=False"},
    ),
    # freezing
    _needs("DDP-100", "what is frozen later gets no gradient", {"frozen": "between blocks"}, _A_SEARCH),
    _needs("DDP-116", "what is thawed was unused before", {"frozen": "until the second block"}, {"unused": "found"}),
    _needs("DDP-100", "it is frozen or thawed between two blocks", {"frozen": _IN_TIME}, _TWO_BLOCKS),
    _never("DDP-106", "a static graph has no other parameters later", {"frozen": _IN_TIME, "graph": "static"}),
    _never("ZERO-027", "changing requires_grad is refused", {"frozen": _IN_TIME, "overlapped": "*"}),
    _never("DDP-158", "a copy has what is trained then", {"frozen": "until the second block", "copied": "*"}),
    _needs("", "a shared weight is frozen", {"frozen": "shared weight"}, {"shared": "tied"}),
    _never("", "something waits for its gradient", *_each({"frozen": "shared weight"}, "delayed", "attached")),
    # tables
    _never("", "sparse gradients of half precision are not summed on a CPU", {"table": _SPARSE, "types": _LOW}),
    _never(
        "ZERO-004",
        "sparse gradients have no Adam and no weight decay, and momentum is not defined for them",
        {"table": _SPARSE, "optimizer": "*"},
    ),
    _needs("DDP-049", "only what has two layouts", {"data": "laid out anew"}, {"convolution": "plain"}),
    _never("DDP-029", "layouts are equal on all ranks, run out or not", {"data": "laid out anew", "schedule": "*"}),
    _never("DDP-117", "a sparse gradient has no view", {"table": _SPARSE, "gradients": "views"}),
    _never(
        "COMM-017",
        "hooks of the library cast dense buckets",
        {"table": _SPARSE, "hook": "fp16 | wrapped | PowerSGD | post-local | asynchronous | user"},
    ),
    # dtypes
    _never("", "chained layers soon leave the range of a half", {"hook": "fp16 | wrapped", "wiring": "chained"}),
    _never(
        "",
        "halves leave nothing of the difference of large numbers",
        {"hook": "fp16 | wrapped", "further layer": "*"},
        {"hook": "fp16 | wrapped", "second model": "behind"},
    ),
    _never("", "a norm before a model magnifies what that one rounds", {"norm": "batch", "second model": "behind"}),
    _never(
        "COMM-018",
        "what no_sync and the parts of a backward have left is no multiple any more of the ranks",
        {"hook": "fp16 | wrapped", "backward": "in two parts", "accumulation": "no_sync | every second"},
    ),
    _never(
        "DDP-130",
        "the step in the first part changes weights that the second goes backward through",
        {"backward": "in two parts", "attached": "*", "loss": "and slopes"},
    ),
    _never(
        "DDPJ-010",
        "both parts average what has accumulated, to which ranks that have run out add nothing",
        {
            "backward": "in two parts", "accumulation": "no_sync | every second", "unused": "found", "schedule": "*",
            "divisor": "by all", "early end": "shadowed",
        },
    ),
    _never("", "a norm over two rows magnifies what chained layers round", {"wiring": "chained", "norm": "batch"}),
    _never("", "Adam's epsilon is nothing in a half", {"types": "half | mixed", "optimizer": "adam"}),
    _never("", "the future of a complex collective holds a real tensor", {"types": "complex", "hook": "asynchronous"}),
    _never("", "such layers round at every step in low precision", *_each({"types": _LOW}, *_ROUNDING)),
    _never("", "such layers round at every step in low precision", *_each({"autocast": "*"}, *_ROUNDING)),
    _never("", "models behind each other magnify what rounds", {"types": f"{_LOW} | mixed", "second model": "behind"}),
    _needs("", "autocast lowers what is of single precision", {"autocast": "*"}, {"types": "float"}),
    _never("", "parameters are lowered already", {"autocast": "*", "lowered": "*"}),
    _never("", "the second model is fed past autocast", {"autocast": "*", "second model": "behind"}),
    _never("", "a fused kernel reads its state as the parameter lies", {"optimizer": "fused", "data": "laid out anew"}),
    _needs("", "a fused kernel is for real numbers", {"optimizer": "fused"}, {"types": "float | double"}),
    _never(
        "COMM-018",
        "bfloat16 and doubles in fp16 round or overflow",
        {"hook": "fp16 | wrapped", "types": "double | bfloat16 | mixed"},
    ),
    _never("ZERO-004", "parameters of one dtype", *_sharded({"types": "mixed | complex"})),
    _never("COMM-018", "complex numbers have no half", {"hook": "fp16 | wrapped", "types": "complex"}),
    _never("COMM-026", "PowerSGD is for real matrices", {"hook": "PowerSGD", "types": "complex"}),
    _needs(
        "ZERO-020",
        "the order of a list with an optimizer",
        {"listed": "*"},
        {"sharded": "zero | bucket views", "context": "Join"},
    ),
    _never(
        "JOIN-041", "the throwing mode counts what the first of the list does", {"listed": "*", "early end": "throws"}
    ),
    _needs("DDP-034", "it is cast between two blocks", {"cast": "*"}, _TWO_BLOCKS),
    _never("", "a cast changes nothing, or drops what is imaginary", {"cast": "*", "types": "double | complex"}),
    _never("", "wide and narrow layers cast what they are given", {"cast": "*", "types": "mixed"}),
    _never("COMM-018", "doubles in fp16 round", {"cast": "*", "hook": "fp16 | wrapped"}),
    _never("", "the other model and the old state keep their dtype", {"cast": "*", "second model": "*"}),
    _never("", "the optimizer is made anew with the cast parameters", {"cast": "*", "param groups": "*"}),
    _never("", "an optimizer that is made anew has no former state", {"cast": "*", "state": "*"}),
    _never("ZERO-004", "an optimizer keeps the dtype that it was made with", {"overlapped": "*", "cast": "*"}),
    _never("DDP-128", "delayed parameters may be refused in another dtype", {"cast": "*", "delayed": "*"}),
    _never("", "there is nothing wider, or no gradient dtype", {"gradient dtype": "*", "types": "double | complex"}),
    _never("COMM-018", "hooks of the library may cast", {"gradient dtype": "*", "hook": "fp16 | wrapped"}),
    _never("", "loading gives the optimizer's state the dtype of its parameter", {"gradient dtype": "*", "state": "*"}),
    _never("ZERO-004", "gradients of one dtype", *_sharded({"gradient dtype": "*"})),
    _never("DDP-160", "a pickled parameter forgets it", {"gradient dtype": "*", "copied": "*"}),
    _never("", "Adam takes no gradient of another dtype", {"gradient dtype": "*", "optimizer": "adam | fused"}),
    # delayed and ignored parameters
    _never(
        "DDP-128", "all delayed parameters are of float32 in torch; ours may differ", {"delayed": "*", "types": "mixed"}
    ),
    _never("DDPJ-014", "a user's hook divides by what it likes", {"hook": "user | asynchronous", "divisor": "*"}),
    _never(
        "DDP-061",
        "the second backward leaves each rank its own gradients, of which one is stepped with",
        {"forwards": "two backwards", "sharded": "*"},
    ),
    _never("DDP-126", "delayed gradients are reduced in no_sync as well", {"delayed": "*", "accumulation": _BY_TURNS}),
    _never(
        "DDP-126",
        "delayed gradients are reduced in each backward",
        {"delayed": "*", "forwards": "two backwards"},
        {"delayed": "*", "backward": "in two parts"},
    ),
    _never("HOOK-013", "the overlapped step is over what DDP reduces in buckets", {"delayed": "*", "overlapped": "*"}),
    _never(
        "DDP-149", "a sharded optimizer makes parameters equal; ignored ones differ", {"ignored": "*", "sharded": "*"}
    ),
    _never("HOOK-013", "the overlapped step is over what DDP reduces", {"ignored": "*", "overlapped": "*"}),
    # acts
    _never(
        "DDP-105",
        "a static graph has one backward",
        {"graph": "static", "forwards": "two | two backwards"},
        {"graph": "static", "backward": "in two parts"},
    ),
    _never("DDP-079", "a static graph that begins inside no_sync", {"graph": "static", "accumulation": _BY_TURNS}),
    _never(
        "JOIN-024",
        "an iteration that an exception ends in a context ends the block",
        {"forwards": "failing", **_A_CONTEXT},
    ),
    _needs(
        "DDP-156", "only a model on the default group is pickled", {"copied": "*"}, {"group": "world", "moved": "no"}
    ),
    _needs("DDP-158", "it is copied between two blocks", {"copied": "*"}, _TWO_BLOCKS),
    _never(
        "JOIN-015",
        "the documents let no overlapping optimizer follow its model: a context may see two groups (HOOK-045)",
        {"moved": "*", "overlapped": "*", "context": "*", "blocks": "two | second turned"},
    ),
    _needs(
        "DDP-156",
        "only a model on the default group is copied",
        {"averaged": "of the wrapper"},
        {"group": "world", "overlapped": "no"},
    ),
    _needs("DDP-162", "it moves between two blocks", {"moved": "*"}, _TWO_BLOCKS),
    _never(
        "JOIN-015",
        "the optimizer stays on its group",
        {"moved": "*", "sharded": "*", "context": "*", "blocks": "two | second turned"},
    ),
    _needs("DDP-071", "it is saved and loaded between two blocks", {"state": "*"}, _TWO_BLOCKS),
    _never(
        "",
        "what it counts in attributes is not in its state",
        {"state": "into a new optimizer", "optimizer": "counting"},
    ),
    _needs("ZERO-014", "a group is added between two blocks", {"param groups": "*"}, _TWO_BLOCKS),
    _never("", "the second model is not copied", {"second model": "*", "copied": "*"}),
    _needs(
        "JOIN-040",
        "two models share a context that lists both",
        {"second model": "*", "context": "ddp.join"},
        {"context": "Join"},
    ),
    _never("JOIN-015", "both models are on one group", {"second model": "*", "moved": "*"}),
    _needs("JOIN-040", "a joinable is in a context that lists it", {"joinable": "*"}, {"context": "Join"}),
    _never("JOIN-015", "all joinables are on one group", {"joinable": "*", "moved": "*"}),
    _never("JOIN-054", "a context counts iterations of its models alike", {"second model": "*", "early end": "throws"}),
    _never(
        "JOIN-054",
        "the throwing mode counts notifications: one forward to an iteration",
        {"early end": "throws", "forwards": "*"},
    ),
    _never("", "the other model steps in every iteration", {"accumulation": "every second", "second model": "*"}),
    _never("DDP-074", "what is synchronised is said by turns", {"accumulation": "every second", "forwards": "*"}),
    _never("", "a closure ends in a step", {"accumulation": "every second", "closure": "*"}),
    # layers
    _never("", "sequences are not empty", {"batches": "sometimes empty", "further layer": "recurrent | attention"}),
    _never("", "statistics of one row are none", {"batches": "*", "norm": "batch"}),
    _never("", "one process would lower other tensors", {"lowered": "*", "further layer": "*"}),
    _never("", "such modules are not pickled", {"copied": "pickled", "further layer": "weight norm | spectral norm"}),
    _never(
        "DDP-078",
        "where buffers may differ, so may what is computed with them",
        {"accumulation": _BY_TURNS, "further layer": "spectral norm"},
        {"forwards": "failing", "further layer": "spectral norm"},
    ),
    # hooks of users
    _never("DDP-160", "a copied parameter has no hooks", {"parameter hooks": "*", "copied": "*"}),
    _needs("", "it is for tensors and tuples of them", {"module hooks": "of the wrapper"}, {"outputs": "one | tuple"}),
    _never("ZERO-031", "the step is in the backward", {"step hooks": "*", "overlapped": "*"}),
    _never("", "a hook before a step comes before its closure", {"step hooks": "halving", "closure": "*"}),
    _never(
        "ZERO-022",
        "what a hook does to gradients on a rank without inputs is not said",
        {"step hooks": "halving", "sharded": "*", "schedule": "*"},
    ),
    # backwards
    _never("DDP-116", "what a part leaves out is skipped", {"backward": "in two parts", "unused": "skipped"}),
    _never("HOOK-046", "the step is in the first part", {"backward": "in two parts", "overlapped": "*"}),
    _never("", "each repeats it all", {"checkpoint": "the whole model", "backward": "in two parts | behind a look"}),
    _never(
        "DDP-061",
        "the second backward is of the outputs alone",
        {"backward": "*", "forwards": "two backwards"},
        {"second model": "behind", "forwards": "two backwards"},
    ),
    _never("DDP-068", "reentrant checkpoints know no inputs", {"backward": "*", "checkpoint": "reentrant"}),
    _never("DDP-141", "a node is there for one backward", {"backward": "*", "lowered": "*"}),
    _never("", "it names the parameters of one model", {"backward": "*", "second model": "behind"}),
    _never("", "the second model is not lowered", {"second model": "behind", "lowered": "*"}),
    # optimizers in the backward
    _never("DDP-131", "they take the place of a hook", *_each({"attached": "*"}, "hook", "lowered", "overlapped")),
    _never("DDP-131", "gradients are not kept", {"attached": "*", "accumulation": "*"}),
    _never("DDP-131", "gradients are not kept for another backward", {"attached": "*", "forwards": "two backwards"}),
    _never(
        "DDP-131",
        "the other part needs the weight that one part steps",
        {"attached": "*", "backward": "in two parts", "wiring": "chained"},
    ),
    _never("DDPJ-040", "how they divide is open", {"attached": "*", "divisor": "*"}),
    _never("", "they hold the tensors that there were", *_each({"attached": "*"}, "copied", "cast", "gradient dtype")),
    _never("ZERO-008", "the owner's update is that of everybody", {"attached": "*", "sharded": "*"}),
    # how an optimizer steps
    _never("", "what accumulates is not cleared", {"cleared": "after the forward", "accumulation": "*"}),
    _never("", "one forward, then its backward", {"cleared": "after the forward", "forwards": "*"}),
    _never("", "a forward that throws clears nothing", {"cleared": "after the forward", "early end": "throws"}),
    _never("", "sparse gradients are not clipped", {"clipped": "*", "table": _SPARSE}),
    _never("", "complex gradients have no order", {"clipped": "by value", "types": "complex"}),
    _never("HOOK-046", "the step is in the backward, clipped or not", {"clipped": "*", "overlapped": "*"}),
    _never("HOOK-046", "the step is in the backward", {"reworked": "*", "overlapped": "*"}),
    _never("HOOK-013", "the overlapped step is over what DDP reduces", {"beside": "*", "overlapped": "*"}),
    _never("", "both are ways to have several groups", {"beside": "*", "param groups": "*"}),
    _never("HOOK-046", "the step is in the backward", {"closure": "*", "overlapped": "*"}),
    _never(
        "",
        "a step whose closure throws has called the hooks before it, and not those after it",
        {"closure": "*", "early end": "throws", "step hooks": "*"},
    ),
    _never("", "a schedule is for the groups that there are", {"rate": "*", "param groups": "*"}),
    _never(
        "ZERO-011",
        "the schedule of a rank that has run out stands still, so in another block owners would differ",
        {"rate": "*", "sharded": "*", "schedule": "*", "blocks": "*"},
    ),
    _never("ZERO-031", "an overlapping optimizer may keep its first settings", {"rate": "*", "overlapped": "*"}),
    # sharded optimizers
    _needs(
        "ZERO-021", "the optimizer takes part in the context", *_sharded({"context": "ddp.join"}), {"context": "Join"}
    ),
    _never("ZERO-001", "an overlapped optimizer is sharded already", {"sharded": "*", "overlapped": "*"}),
    _never(
        "ZERO-008",
        "the owner's own gradient counts: a rank without inputs has none to zero, and what is frozen gets no other",
        {"sharded": "*", "frozen": "between blocks", "cleared": "*", "schedule": "none on some"},
    ),
    _never(
        "ZERO-013",
        "what was frozen before its group came has never required a gradient, and is not stepped",
        {"sharded": "*", "frozen": "between blocks", "cleared": "*", "param groups": "*"},
    ),
    _never("ZERO-004", "sparse parameters are refused", *_sharded({"table": _SPARSE})),
    _needs(
        "HOOK-005",
        "the hook factories belong to an overlapping optimizer",
        {"overlap": "*"},
        {"overlapped": "sequential | interleaved"},
    ),
    _never("COMM-007", "one hook", {"overlapped": "*", "hook": "*"}),
    _never(
        "HOOK-046",
        "the step is in the backward: gradients are cleared before each",
        {"overlapped": "*", "accumulation": "uncleared"},
    ),
    _never("HOOK-046", "two backwards of one forward make one step", {"overlapped": "*", "forwards": "two backwards"}),
    _never(
        "ZERO-005",
        "an overlapping optimizer has a functional counterpart",
        {"overlapped": "*", "optimizer": "counting"},
    ),
    _never("ZERO-025", "adding a group is refused", {"overlapped": "*", "param groups": "*"}),
    _never("DDP-051", "the hook is dropped with the copy", {"overlapped": "*", "copied": "*"}),
    _never("ZERO-032", "state is not accessible through the functional optimizer", {"overlapped": "*", "state": "*"}),
    _never(
        "HOOK-047",
        "the documents do not say what a joined rank does in reduce-scatter with skipped parameters",
        {"overlapped": "*", "unused": "skipped"},
    ),
)


def closed(choices: Choices) -> dict[str, str] | None:
    """The choices with all that they need, or None if they do not go together."""
    made = {axis: value for axis, value in choices.items() if value != AXES[axis][0]}
    fixed = set(choices)
    changed = True
    while changed:
        changed = False
        for rule in RULES:
            if not rule.applies(made):
                continue
            if not rule.needs:
                return None
            for axis, values in rule.needs.items():
                if value_of(made, axis) in values:
                    continue
                if axis in fixed:
                    return None
                made[axis] = values[0]
                fixed.add(axis)
                changed = True
    return {axis: value for axis, value in made.items() if value != AXES[axis][0]}


def why_not(choices: Choices) -> str:
    """The first rule that these choices break, in words; empty if they go together."""
    for rule in RULES:
        unmet = [axis for axis, values in rule.needs.items() if axis in choices and choices[axis] not in values]
        if rule.applies(choices) and (unmet or not rule.needs):
            return f"{rule.why} ({rule.clause})" if rule.clause else rule.why
    return "" if closed(choices) is not None else "what one of them needs, another forbids"


def features(choices: Choices) -> frozenset[Feature]:
    """What of a program is not plain."""
    return frozenset((axis, value) for axis, value in choices.items() if value != AXES[axis][0])


def pairs(found: Iterable[Feature]) -> Iterator[tuple[Feature, Feature]]:
    """Every pair of features, in one order."""
    return combinations(sorted(found), 2)


@cache
def legal_pairs() -> frozenset[tuple[Feature, Feature]]:
    """The pairs that some legal program has."""
    return frozenset(
        (one, other) for one, other in pairs(FEATURES) if one[0] != other[0] and closed(dict([one, other])) is not None
    )
