"""Defects of area ddp: unused parameters, static graph, output sink."""

from __future__ import annotations

from dataclasses import replace

from impl.ddp.readiness import Readiness
from impl.ddp.reducer import Reducer
from impl.ddp.reduction import Transport
from impl.ddp.shared import Agreement
from impl.ddp.usage import Usage

from ..planting import defect, edit, swap


@defect("DDP-108")
def both_graph_options_unmentioned() -> None:
    """A static graph together with detection is accepted without a word."""
    edit("if find_unused:", "if find_unused is None:")


@defect("DDP-099")
def divides_by_the_number_of_users() -> None:
    """A gradient is averaged over the ranks that used the parameter, not over all of them."""
    def deliver(self: Reducer) -> None:
        counts = self.transport.use_counts.tolist()
        for parameter, count in zip(self.parameters, counts, strict=False):
            if count and parameter.grad is not None:
                parameter.grad *= self.team.size / count
        right(self)

    right = swap(Reducer, "_delivered", deliver)


@defect("DDP-102")
def frozen_dataclasses_are_written_to() -> None:
    """Outputs in a dataclass are replaced by ordinary assignment, which a frozen one refuses."""
    edit("object.__setattr__(duplicate, name, attribute)", "setattr(duplicate, name, attribute)")


@defect("DDP-102")
def dictionaries_must_take_items() -> None:
    """A dictionary that refuses new items fails the forward that returns it."""
    edit("except Exception:", "except TypeError:", within="_mapping_like")


@defect("DDP-101")
def every_node_is_asked_for_its_parameter() -> None:
    """What a user's own operation keeps as ``variable`` is taken for a parameter."""
    edit("if not edges and (", "if (", within="leaves_behind")


@defect("DDP-099")
def given_gradients_lie_row_by_row() -> None:
    """Who has not used a parameter gets its gradient row by row, whatever the strides of the parameter."""
    edit("copy=True", "copy=True, memory_format=torch.contiguous_format", within="_deliver_copies")


@defect("DDP-099")
def last_of_several_forwards_decides_about_use() -> None:
    """Of several forwards before one backward the last alone says what is unused."""
    edit("unused &= theirs", "pass")


@defect("DDP-099")
def locally_unused_stays_local() -> None:
    """A parameter that this rank did not use keeps its old gradient, though others used it."""
    def agree(self: Transport, used: list[bool], device: object, **learned: bool) -> Agreement:
        agreed = right(self, used, device, **learned)
        return replace(agreed, unused=frozenset(index for index, mine in enumerate(used) if not mine))

    right = swap(Transport, "agree_on_use", agree)


@defect("DDP-114")
def missing_output_gradients_become_zeros() -> None:
    """Outputs that get no gradient pass zeros on."""
    edit("ctx.set_materialize_grads(False)", "ctx.set_materialize_grads(True)")


@defect("DDP-104")
def needless_detection_mentioned_each_time() -> None:
    """The warning about needless detection comes in every iteration."""
    edit("Usage._warned_needless = True", "pass")


@defect("DDP-104")
def needless_detection_unmentioned() -> None:
    """Nobody is told that the search for unused parameters finds none."""
    swap(Usage, "judge_search", lambda self, reductions: None)


@defect("DDP-099")
def new_gradients_lie_in_the_bucket() -> None:
    """A parameter that this rank did not use is given a view of the bucket, which the next iteration fills anew."""
    edit("copy=True", "copy=False", within="_deliver_copies")


@defect("DDP-100")
def old_gradients_in_buckets_are_averaged() -> None:
    """An old gradient that lives in a bucket is averaged although nobody has used its parameter."""
    edit("if unused or any(map(is_, gradients, repeat(None))):", "if any(map(is_, gradients, repeat(None))):")


@defect("DDP-113")
def outputs_always_cloned() -> None:
    """Outputs are cloned although that was switched off."""
    edit("if clone else outputs", "if outputs else outputs")


@defect("DDP-102")
def outputs_in_dataclasses_not_found() -> None:
    """Tensors in the fields of a dataclass are not found."""
    edit("if dataclasses.is_dataclass(value):", "if dataclasses is None:", within="_items")


@defect("DDP-102")
def outputs_in_dicts_not_found() -> None:
    """Tensors among a dictionary's values are not found."""
    edit("return value.values()", "return value", within="_items")


@defect("DDP-112")
def outputs_not_cloned() -> None:
    """Outputs that pass the sink are not cloned."""
    edit("self._ddp_sink_clone = False, -1, True", "self._ddp_sink_clone = False, -1, False")


@defect("DDP-101")
def outputs_outside_the_loss_awaited() -> None:
    """With detection on, parameters behind outputs that are not in the loss are waited for in vain."""
    edit(
        "OutputSink.apply(begin, pending, clone, *tensors)",
        "call_when_backward_begins(list(tensors), pending, begin) or tensors",
    )
    edit("elif self._facts.searched:", "elif self._facts.searched and not self._order:")


@defect("DDP-106")
def a_backward_that_goes_further_stays_local() -> None:
    """A parameter that a further backward of the same forward reaches for the first time keeps its own gradient."""
    edit("if index in (self.unused if synchronised else self.never_here):", "if False:", within="refuse_late")


@defect("DDP-106")
def under_no_sync_a_static_graph_may_change() -> None:
    """What a static graph has never used may be used under no_sync, where its gradient stays local."""
    edit("self.unused if synchronised else self.never_here", "self.unused if synchronised else ()")


@defect("DDP-102")
def outputs_searched_one_level_deep() -> None:
    """Containers inside containers are not searched."""
    edit("left += items", "left += [each for each in items if isinstance(each, torch.Tensor)]")


@defect("DDP-102")
def outputs_in_dataclasses_with_slots_are_not_expected() -> None:
    """The search reads a dataclass by its ``__dict__``, which one with slots has not."""
    edit(
        "return [getattr(value, field.name, None) for field in dataclasses.fields(value)]",
        "return list(vars(value).values())",
    )


@defect("DDP-099")
def parameters_that_are_outputs_count_as_unused() -> None:
    """The search for unused parameters does not see one that is itself an output."""
    edit(
        "found = {index_of[output] for output in outputs if output.grad_fn is None and output in index_of}",
        "found = set()",
    )


@defect("DDP-115")
def rref_outputs_unwrapped() -> None:
    """An RRef among the outputs comes back as its value."""
    edit(
        "return rpc.RRef(map_tensors(change, value.local_value(), here))",
        "return map_tensors(change, value.local_value())",
    )


@defect("DDP-111")
def static_graph_expects_one_arrival() -> None:
    """A static graph expects each parameter once, however often it arrived in the first iteration."""
    edit("-count if came else 0", "1 if came else 0")


@defect("DDP-109")
def static_graph_in_mid_training() -> None:
    """A static graph may be set after training has begun."""
    edit("trained=self.reducer.forwards.latest is not None", "trained=self.reducer.facts.rebuilt")


@defect("DDP-110", "DDP-111")
def static_graph_learns_in_a_nested_backward() -> None:
    """The first iteration of a static graph is over when the first backward inside of backward is."""
    def arrived(self: Reducer, index: int, passed: bool = True) -> None:
        right(self, index, passed)
        if self.usage.learning:
            self._arm()

    right = swap(Reducer, "arrived", arrived)


@defect("DDP-105")
def static_graph_learns_from_old_gradients() -> None:
    """In the first iteration of a static graph a gradient that was there before counts as one that has come."""
    def learn(self: Readiness) -> None:
        for index, parameter in enumerate(self._parameters):
            self._usage._since_sync[index] = parameter.grad is not None
        right(self)

    right = swap(Readiness, "_learn_static_graph", learn)


@defect("DDP-106")
def static_graph_may_change() -> None:
    """A static graph that leaves out a parameter is not complained of."""
    right = swap(Reducer, "check_finished", lambda self: self.abandon() if self.facts.static else right(self))


@defect("DDP-107")
def static_graph_set_again() -> None:
    """Setting a static graph a second time begins anew."""
    edit("if self.static_graph:", "if self.static_graph is None:")


@defect("DDP-100", "DDP-105", "DDP-119")
def unused_everywhere_gets_zeros() -> None:
    """A parameter that no rank used gets an average of nothing: zeros."""
    def agree(self: Transport, used: list[bool], device: object, **learned: bool) -> Agreement:
        agreed = right(self, used, device, **learned)
        return replace(agreed, unused=frozenset())

    right = swap(Transport, "agree_on_use", agree)


@defect("DDP-116")
def unused_parameters_still_travel() -> None:
    """skip_all_reduce_unused_params is accepted and has no effect."""
    edit("skips_unused=skip_unused", "skips_unused=False")


@defect("DDP-100")
def unused_tables_get_empty_gradients() -> None:
    """A sparse parameter that nobody uses gets a gradient without rows instead of none."""
    edit("if self.spec.slots[0].parameter not in untouched:", "if True:")


@defect("DDP-100")
def old_rows_of_unused_tables_are_averaged() -> None:
    """A sparse parameter that nobody uses gets the average of the rows that ranks still hold, if there are any."""
    edit(
        "if self.spec.slots[0].parameter not in untouched:",
        "if self.spec.slots[0].parameter not in untouched or result.indices().numel():",
    )


@defect("DDP-100")
def watching_thaws_parameters() -> None:
    """A frozen parameter is thawed to find its node, and stays so."""
    edit("parameter.requires_grad_(False)", "pass")


@defect("DDP-116")
def an_order_without_skipped_parameters_is_refused() -> None:
    """In a static graph that skips what nobody uses, the order of buckets is to name every parameter."""
    edit("due = set(range(len(self.parameters))) - self.plan.left_out", "due = set(range(len(self.parameters)))")


@defect("DDP-116")
def skipping_is_decided_by_each_rank() -> None:
    """Each rank leaves out of later reductions what it does not use itself."""
    edit("self._leave_out(self._untouched(agreement))", "self._leave_out(self._usage.unused)")


@defect("DDP-112")
def only_the_first_output_is_cloned() -> None:
    """Of several outputs the first alone may be changed in place."""
    edit(
        "tuple(output.clone() for output in outputs) if clone else outputs",
        "(outputs[0].clone(), *outputs[1:]) if clone else outputs",
    )


@defect("DDP-112")
def items_of_mappings_stay_behind_the_sink() -> None:
    """A mapping of a class of its own comes back with the tensors that the module made, not with their clones."""
    edit("item in items.items():\n            duplicate[key]", "item in original.items():\n            duplicate[key]")


@defect("DDP-112")
def attributes_of_mappings_stay_behind_the_sink() -> None:
    """Of a model's output the items are clones, and the attributes that stand for them are not."""
    edit("new_of.get(id(attribute), attribute)", "attribute")


@defect("DDP-112")
def no_clones_while_a_static_graph_is_learned() -> None:
    """In the first iteration of a static graph outputs do not pass the sink."""
    edit("tells and (self.facts.searched or self.facts.holds_back)", "tells and self.facts.searched")


@defect("DDP-109")
def static_graph_after_an_evaluation_is_too_late() -> None:
    """A model that has been evaluated counts as trained when a static graph is asked for."""
    edit(
        "trained=self.reducer.forwards.latest is not None",
        "trained=self.reducer.forwards.latest is not None or self._buffer_sync.due_after_evaluation",
    )


@defect("DDP-054", "DDP-108")
def static_graph_is_searched_all_the_same() -> None:
    """Where both are asked for, a static graph is searched, and its buckets are never rebuilt."""
    edit('{"static": True, "searched": False}', '{"static": True, "searched": self.searched}')


@defect("DDP-062")
def complaint_repeated_at_every_forward() -> None:
    """What a backward past the outputs left out is complained of again and again."""
    edit('complaint, self._complaint = self._complaint, ""', "complaint = self._complaint")


@defect("DDP-102")
def fields_beside_the_constructor_are_not_searched() -> None:
    """Of a dataclass only what its constructor takes is searched for output tensors."""
    edit(
        "return [getattr(value, field.name, None) for field in dataclasses.fields(value)]",
        "return [getattr(value, field.name, None) for field in dataclasses.fields(value) if field.init]",
    )


@defect("DDP-116")
def what_is_left_out_may_be_used_under_no_sync() -> None:
    """A parameter that is left out of reductions is used under no_sync, and its gradient stays local without a word."""
    edit("self.usage.refuse_left_out(self.plan.left_out, self.parameters)", "pass")


@defect("DDP-102")
def dataclasses_are_asked_for_fields_that_are_not_set() -> None:
    """All fields of an output that is a dataclass are read, whether this forward has set them or not."""
    edit(
        "for field in dataclasses.fields(value) if hasattr(value, field.name)]",
        "for field in dataclasses.fields(value)]",
        within="map_tensors",
    )


@defect("DDP-116")
def what_is_left_out_must_have_no_gradient_from_before() -> None:
    """A parameter that is left out of reductions counts as used again if it has a gradient from before."""
    edit("if self._since_sync[index] and parameters", "if parameters", within="refuse_left_out")


@defect("DDP-101")
def a_loss_that_is_kept_says_nothing() -> None:
    """Under a search a backward that goes past the outputs is complained of, though it reaches every parameter."""
    edit("pending.differentiated or everything or not self", "pending.differentiated or not self")


@defect("DDP-112")
def backward_through_a_view_that_was_changed_is_not_noticed() -> None:
    """A backward through an output that is a view, and was changed in place, is not noticed."""
    edit("(output, kernels.viewed(output)) if changeable else (output,)", "(output,)")


@defect("DDP-110")
def slopes_alone_are_not_learned_from() -> None:
    """A static graph does not learn from a backward of slopes alone, where that leaves parameters out."""
    edit("(self.facts.searched or self.usage.learning)", "self.facts.searched")


@defect("DDP-100")
def gradients_left_out_of_a_failed_backward_are_what_was_sent() -> None:
    """In a bucket, the old gradient of an unused parameter is lost where backward fails before it is put back."""
    edit("kept = self._set_aside.get(place)\n", "kept = None\n", within="part_with_flat")


@defect("DDP-099")
def counts_of_use_tell_of_one_parameter_too_many() -> None:
    """Of a static graph, the counts of use end with that of the ranks that have learned it."""
    edit("self.use_counts = marks[: len(used)]", "self.use_counts = marks")


@defect("DDP-099")
def only_the_last_of_several_forwards_knows_what_the_others_use() -> None:
    """A backward that reaches the first of several forwards first waits for nothing that only a later one uses."""
    edit("unused &= theirs", "unused &= theirs if pending is self.latest else unused")


@defect("DDP-099")
def forwards_without_a_backward_count_as_well() -> None:
    """What an evaluation with gradients has used is awaited by the next backward, until its end."""
    edit("kernels.is_evaluated(sink)", "not each.spent", within="beyond_reach")


@defect("DDPJ-032")
def left_out_before_all_have_learned() -> None:
    """What no rank has used yet is left out, though some rank has not trained the static graph yet."""
    edit('know("leaves_out", self.skips_unused and not holds_back)', 'know("leaves_out", self.skips_unused)')


@defect("DDP-102")
def objects_without_outputs_are_copied() -> None:
    """A dataclass in which nothing is replaced comes back as another object."""
    edit(
        "    if all(getattr(original, name) is attribute for name, attribute in attributes.items()):\n"
        "        return original\n",
        "",
    )


@defect("DDP-116")
def what_was_cleared_counts_as_used_where_it_is_left_out() -> None:
    """What was used under no_sync may not be left out again although its gradient was cleared."""
    edit("if self._since_sync[index] and parameters[index].grad is not None:", "if self._since_sync[index]:")


@defect("DDP-099")
def a_model_that_is_passed_by_waits_for_the_end() -> None:
    """Buckets of which nothing is used start at the end of the backward, behind those of a model that is reduced
    before it on other ranks."""
    edit("if self.usage.unused and self._remote is None and not self.facts.holds_back:", "if False:")


@defect("DDP-099")
def what_is_handed_out_never_tells_of_a_backward() -> None:
    """A rank whose forward has only its argument to hand out does not take part in the reduction."""
    edit("made if pending.noticeable else found", "made")


@defect("DDP-105")
def what_is_handed_out_tells_until_a_static_graph_is_learned() -> None:
    """Once use is agreed on, a rank whose forward has only its argument to hand out leaves the reduction."""
    edit("through_sink or (tells and not pending.noticeable)", "through_sink")


@defect("DDP-101")
def arguments_are_known_outside_of_containers_only() -> None:
    """An argument that lies inside a container and is handed out with it is taken for an output."""
    edit("find_tensors([*inputs, *kwargs.values()])", "filter(torch.is_tensor, [*inputs, *kwargs.values()])")


@defect("DDP-104")
def advice_ends_a_step() -> None:
    """Where a program makes warnings errors, the advice that a search is needless ends the backward of one rank."""
    edit("with suppress(UserWarning):", "if True:")


@defect("DDP-174")
def where_a_backward_began_is_kept() -> None:
    """The node by which a searched backward has begun is kept behind it, and with it a graph that its user keeps."""
    edit("self._entered_at = None", "pass", within="_counts_on_another")


@defect("DDP-116")
def what_was_left_out_last_says_why() -> None:
    """Of a parameter that is left out of reductions and used all the same, the error does not name the option."""
    edit("self._skipped = left_out", "pass", within="refuse_left_out")
