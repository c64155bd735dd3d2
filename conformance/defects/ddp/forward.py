"""Defects of area ddp: forward path and module behaviour."""

from __future__ import annotations

from torch import nn

from impl.ddp import DistributedDataParallel
from impl.ddp.readiness import Arrivals

from ..planting import defect, edit, override, swap


@defect("DDP-042")
def active_after_an_error() -> None:
    """The active model is not forgotten when its forward raises."""
    edit(
        "try:\n        return self.module(*inputs, **kwargs)\n    finally:\n"
        "        running.ddp = outer\n        self._iteration.records = False",
        "output = self.module(*inputs, **kwargs)\n    running.ddp = outer\n    return output",
    )


@defect("DDP-040")
def the_options_hide_what_the_module_calls_by_their_name() -> None:
    """What the wrapped module calls its config is not found: the wrapper's options are called so, too."""
    edit(
        "    self._config = config\n", "    self._config = self.config = config\n",
        within="DistributedDataParallel.__init__",
    )  # fmt: skip


@defect("DDP-037")
def always_ties_outputs() -> None:
    """Outputs pass the sink even where nothing is searched for, and come back as other objects."""
    edit("tells and (self.facts.searched or self.facts.holds_back)", "pending.sync")


@defect("DDP-044")
def another_profiler_label() -> None:
    """The forward appears in profiles under the name of the wrapped module."""
    edit('"DistributedDataParallel.forward"', 'f"{type(self.module).__name__}.forward"')


@defect("DDP-040")
def attributes_not_looked_up_inside() -> None:
    """An attribute that DDP lacks is not looked up on the wrapped module."""
    swap(DistributedDataParallel, "__getattr__", nn.Module.__getattr__)


@defect("DDP-038")
def calls_forward_past_the_hooks() -> None:
    """The wrapped module's forward is called directly, past its hooks."""
    edit("self.module(", "self.module.forward(")


@defect("DDP-047")
def evaluation_takes_part() -> None:
    """A gradient-free forward goes through the same preparations as a training one."""
    edit("sync = recorded and iteration", "sync = iteration")
    edit("if not self.facts.rebuild_due or not torch.is_grad_enabled():", "if not self.facts.rebuild_due:")


@defect("DDP-036")
def keywords_not_passed_on() -> None:
    """Keyword arguments do not reach the wrapped module."""
    edit("self.module(*inputs, **kwargs)", "self.module(*inputs)")


@defect("DDP-048")
def lone_evaluation_counts_for_all() -> None:
    """A rank that has evaluated alone takes buffers for synchronised that the others will synchronise."""
    edit("if not self._evaluates_alone():", "if True:")


@defect("DDP-036", "DDP-102")
def named_tuples_become_tuples() -> None:
    """A named tuple comes back as a plain tuple where the graph is searched."""
    edit("duplicate = original._make(items) if", "duplicate = tuple(items) if")


@defect("DDP-037")
def outputs_out_of_sight_begin_no_backward() -> None:
    """Outputs in which no tensor was found are taken to tell of their backward, and are waited for in vain."""
    edit("not (pending.noticeable and pending.context is None)", "pending.context is not None")
    edit("self.awaited is None or", "self.awaited is None or not self.latest.noticeable or", within="waits_for_another")


@defect("DDP-045")
def to_kwargs_without_a_tuple() -> None:
    """to_kwargs returns the arguments bare instead of one tuple for each device."""
    edit(
        "return (inputs,), (kwargs,)", "return inputs, kwargs",
    )


@defect("DDP-039")
def train_returns_the_wrapped_module() -> None:
    """train() returns the wrapped module, so that a chain of calls loses DDP."""
    override(DistributedDataParallel, "train", lambda self, mode=True: self.module.train(mode))


@defect("DDP-036")
def a_first_argument_by_place_is_needed() -> None:
    """A call must give its first argument by place, as though every module had one."""
    within = "DistributedDataParallel.forward"
    edit("def forward(self, *inputs: Any", "def forward(self, first: Any, *inputs: Any", within=within)
    edit("self._pre_forward(*inputs", "self._pre_forward(first, *inputs", within=within)


@defect("DDP-103")
def outputs_that_hold_themselves_are_followed_for_ever() -> None:
    """The search for tensors does not notice that it is where it has been."""
    edit("elif id(value) not in seen and (items", "elif (items")


@defect("DDP-047")
def training_mode_takes_part() -> None:
    """A forward without gradients takes part like others where the model is in training mode."""
    edit(
        "if not self.facts.rebuild_due or not torch.is_grad_enabled():",
        "if not self.facts.rebuild_due or not (torch.is_grad_enabled() or self.iteration.training):",
    )


@defect("DDP-040")
def a_loss_past_the_wrapper_is_told_to_nobody() -> None:
    """Nobody hears that the gradients of a loss which a method of the module makes stay local."""
    edit("warnings.warn(PAST_THE_WRAPPER, UserWarning, stacklevel=2)", "pass")


@defect("DDP-174")
def dropped_models_stay() -> None:
    """Parameters hold the lists that hold them, also when their model was dropped."""
    swap(Arrivals, "__del__", lambda self: None)


@defect("DDP-036", "DDP-102")
def lists_lose_what_they_know_besides() -> None:
    """Outputs in a list of one's own class come back without its attributes."""
    edit("return _with_attributes(duplicate, zip(original, items, strict=True))", "return duplicate")


@defect("DDP-036", "DDP-102")
def constructors_fail_with_type_errors() -> None:
    """A container that cannot be made anew is passed through only if its constructor fails as Python's own do."""
    edit("    except Exception:", "    except TypeError:", within="_sequence_like")


@defect("DDP-036", "DDP-102")
def dataclasses_can_be_copied() -> None:
    """A dataclass that cannot be copied ends the forward."""
    edit("    except Exception:", "    except TypeError:", within="_object_like")


@defect("DDP-049")
def each_look_at_a_future_is_the_first() -> None:
    """A wait for a hook's future never counts as long, so ranks that wait for each other are never told."""
    look = "look(watch, place, team, {begun}, on_peers=on_peers)"
    edit(look.format(begun="begun"), look.format(begun="time.monotonic()"))
