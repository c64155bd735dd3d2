"""DistributedDataParallel: wraps a module and averages its gradients over a process group."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..comm import streams
from ..comm.coalesce import broadcast_coalesced
from ..comm.ranks import GroupRank, Team
from . import hooks, kernels, options, params, stages
from .buffers import BufferHook, _BufferCommHook, _BufferCommHookLocation
from .compat import CompatibleNames
from .containers import find_tensors, map_tensors
from .delayed import DelayedReduction
from .graph import reachable_parameters
from .iteration import Iteration, Stage
from .log import DDPLogger
from .mixed_precision import _MixedPrecision
from .optimizer_in_backward import OptimizersInBackward
from .parts import running
from .pending_backward import OutputSink, PendingBackward, announce_backward
from .per_parameter import PerParameterReduction
from .plan import BucketCaps
from .reducer import Reducer
from .renewal import Renewal
from .transport import Transport
from .uneven import UnevenInputs

BROADCAST_CHUNK_BYTES = 250 * 1024 * 1024


class DistributedDataParallel(Renewal, UnevenInputs, CompatibleNames, nn.Module):
    """Data parallelism over processes: every rank holds the module, feeds it its own data, and gets averaged gradients.

    The constructor, the forward and the backward are points at which all ranks of the group meet (DDP-020). Parameters
    and buffers start equal to those of group rank 0 (DDP-025); after a backward every managed parameter's ``.grad`` is
    the mean over the group (DDP-049). Data-loader workers should be started by forkserver or spawn where the backend is
    not fork-safe (NCCL, Gloo over Infiniband; DDP-021). Inside ``Join`` or ``ddp.join()`` ranks may have different
    numbers of inputs.

    Evaluating (``eval()`` and ``no_grad``) counts as a forward: the first one after a synchronised forward takes over
    the buffers of rank 0, if the model has any, so that all ranks evaluate the same model; each of them has to come
    (DDP-088). One rank that evaluates alone says so: it calls the wrapped module (``ddp.module(x)``, as with torch's
    DDP), or evaluates under ``no_sync()``; then it uses its own buffers and needs nobody. Inside a join context no
    evaluation needs anybody, since ranks may have unequally many.

    Args:
        module: the module to train; kept as it is in ``.module``. All parameters must be registered by now.
        device_ids: None, or one device for a single-device accelerator module; inputs are then moved there.
        output_device: None, or the device of the output of such a module.
        dim: dimension along which ``scatter`` and ``gather`` work.
        broadcast_buffers: deprecated as in torch 2.13; False leaves buffers alone at construction and in forward.
        init_sync: False skips the comparison of ranks and the initial broadcast; the ranks must then be equal already.
        process_group: the ranks to average over; the whole world if None.
        bucket_cap_mb: size of a gradient bucket in MiB; 25 (and 1 for the first) if None. That of rank 0 holds for all.
        find_unused_parameters: let iterations leave parameters out. Their gradients are the sum of what exists over the
            full group size; those that no rank used are not touched.
        check_reduction: deprecated, without effect.
        gradient_as_bucket_view: let ``.grad`` be views of the communication buffers after the first iteration.
        static_graph: promise that every iteration uses the same parameters in the same way.
        delay_all_reduce_named_params: (name, parameter) pairs to be reduced in one piece when the gradient of
            ``param_to_hook_all_reduce`` is ready. Both or neither.
        param_to_hook_all_reduce: see there.
        mixed_precision: lower dtypes for parameters, reduction and buffers.
        device_mesh: a one-dimensional mesh instead of ``process_group``.
        skip_all_reduce_unused_params: leave parameters that no rank uses out of later reductions; they must stay the
            same on all ranks.
        bucket_cap_mb_list: sizes in MiB of the first buckets, one by one; the last holds for all further ones.
        batched_grad_copy: accepted; gradients are always copied bucket by bucket here (DDP-120).
        forward_sync_buffers: False switches off the buffer broadcast in forward, but not the one at construction.

    Raises:
        ValueError, RuntimeError: for arguments that do not fit each other, and on every rank when ranks hold different
            models (DDP-001 … DDP-032).
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Sequence[tuple[str, nn.Parameter]] | None = None,
        param_to_hook_all_reduce: nn.Parameter | None = None,
        mixed_precision: _MixedPrecision | None = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: Sequence[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
    ) -> None:
        self._iteration = Iteration(self)  # which the constructors below tell that there is no session yet
        super().__init__()  # of Joinable, which passes on to nn.Module
        self.logger = None
        options.warn_of_old_arguments(check_reduction, broadcast_buffers, forward_sync_buffers)
        options.check_kinds(device_mesh, mixed_precision, param_to_hook_all_reduce)
        options.check_delay_pair(delay_all_reduce_named_params, param_to_hook_all_reduce)
        self.process_group = options.group_of(process_group, device_mesh)
        self.device_mesh = device_mesh
        self.module = module
        delayed = list(delay_all_reduce_named_params or ())
        self.parameters_to_ignore = params.ignored_names(module) | {name.removeprefix(".") for name, _ in delayed}
        managed = params.managed_parameters(module, self.parameters_to_ignore)
        self._module_parameters = [item.parameter for item in managed]
        placement = options.place(module, self._module_parameters, [p for _, p in delayed], device_ids, output_device)
        self.device_ids, self.output_device = placement.device_ids, placement.output_device
        self.device, self.device_type = placement.device, placement.device.type
        self.is_multi_device_module = placement.several_devices

        self.dim = dim
        self.static_graph = False
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.skip_all_reduce_unused_params = skip_all_reduce_unused_params
        self.batched_grad_copy = batched_grad_copy
        self.mixed_precision = mixed_precision
        self.forward_sync_buffers = options.syncs_buffers_in_forward(broadcast_buffers, forward_sync_buffers)
        self.broadcast_buffers = self.forward_sync_buffers
        self.broadcast_bucket_size = BROADCAST_CHUNK_BYTES
        self._caps = BucketCaps.of(bucket_cap_mb, bucket_cap_mb_list)
        self.use_side_stream_for_tensor_copies = options.side_stream_wanted()

        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self._reset_runtime_state()

        buffers = params.managed_buffers(module, self.parameters_to_ignore)
        syncs_buffers_at_start = broadcast_buffers is not False or forward_sync_buffers is not None
        if init_sync:
            self._synchronise_start(buffers if syncs_buffers_at_start else {})
        self.bucket_bytes_cap = self._caps.steady_bytes
        self.bucket_bytes_cap_list = list(self._caps.sizes_bytes) if bucket_cap_mb_list else []
        self._mixed_precision_run = self._run_lowered(mixed_precision) if mixed_precision is not None else None
        self._build_reducer()
        self._delayed = DelayedReduction.of(
            self._iteration, delayed, param_to_hook_all_reduce, self.broadcast_bucket_size
        )
        if static_graph:
            self._set_static_graph()

    def _reset_runtime_state(self) -> None:
        """State that is never pickled with a meaning of its own: as on a fresh object."""
        self._has_rebuilt_buckets = False
        self._failed_forward = None
        self._ddp_sink_clone = True
        self._lazy_init_ran = False
        #: gradient-free forwards have run since training last allowed a buffer synchronisation (exceeds DDP-089)
        self._sync_due_after_evaluation = False
        self._comm_hooks = []
        self._buffer_hook = None
        self._authoritative_rank = None
        self._per_parameter = PerParameterReduction(self)

    def _synchronise_start(self, buffers: dict[str, torch.Tensor]) -> None:
        """Compare the ranks' models, then take over that of group rank 0 and its bucket sizes (DDP-025)."""
        team = Team.of(self.process_group)
        managed = params.managed_parameters(self.module, self.parameters_to_ignore)
        settings: dict[str, object] = {
            "find_unused_parameters": self.find_unused_parameters,
            "buffers synchronised in forward": self.forward_sync_buffers,
        }
        self._caps = params.verify_alike(
            team, settings, managed, buffers, self._caps, self.device, self._log_and_throw
        )
        state = [item.parameter for item in managed] + list(buffers.values())
        broadcast_coalesced(
            team, [tensor.detach() for tensor in state], GroupRank(0), "initial model", self.broadcast_bucket_size
        )

    def _build_reducer(self) -> None:
        """Make the reducer and the logger; called by the constructor and after unpickling."""
        managed = params.managed_parameters(self.module, self.parameters_to_ignore)
        trained = [item for item in managed if item.parameter.requires_grad]
        self._iteration.team = Team.of(self.process_group)
        specs = params.specs_of(trained)
        if self._mixed_precision_run is not None:
            specs = self._mixed_precision_run.reduced_specs(specs)
        self.logger = DDPLogger(options.construction_entries(self, specs))
        self.reducer = Reducer(
            self.module,
            [item.parameter for item in trained],
            specs,
            Transport(self._iteration),
            self._caps,
            self.logger,
            find_unused=self.find_unused_parameters,
            static_graph=self.static_graph,
            as_view=self.gradient_as_bucket_view and self._mixed_precision_run is None,
            skip_unused=self.skip_all_reduce_unused_params,
            recast=self._mixed_precision_run is not None,
        )
        self.logger.note_plan(self.reducer.plan, specs, rebuilt=False)
        self._passing_sync_batchnorm_handle(self.module)
        self._assign_modules_buffers()

    # -- forward

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the wrapped module; arguments and outputs pass through (DDP-036)."""
        if torch.compiler.is_compiling():
            from . import compiled

            return compiled.forward(self, inputs, kwargs)
        with kernels.profiled("DistributedDataParallel.forward"):
            inputs, kwargs = self._pre_forward(*inputs, **kwargs)
            try:
                with kernels.compiled_by_bucket(self.bucket_bytes_cap):  # a part of the module may be compiled
                    output = self._run_ddp_forward(*inputs, **kwargs)
            except BaseException as error:
                self._note_failed_forward(error)
                if self._mixed_precision_run is not None:
                    self._mixed_precision_run.after_forward(failed=True)
                raise
            return self._post_forward(output)

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._recomputes():
            return self._to_module(inputs, kwargs)
        if not self._lazy_init_ran:
            self._lazy_init()
        if self._iteration.session is not None:
            self._iteration.session.refuse_to_go_on()  # before the reducer forgets what has raised
        sync = torch.is_grad_enabled() and self.require_backward_grad_sync
        if sync:
            self.reducer.times.forward_start = time.time_ns()
            self.reducer.check_finished()
        due = stages.due_before_forward(self, sync=sync)
        self._begin_iteration(due, sync=sync)
        for place, stage in enumerate(due):
            if place > 0:
                self._iteration.announce(stage)
            stages.perform(self, stage)
        return self._to_module(inputs, kwargs)

    def _recomputes(self) -> bool:
        """Whether this forward repeats one whose backward is now running (the whole model is checkpointed).

        Such a forward only brings back activations: it is no iteration, and the backward that runs stays the one that
        is synchronised (DDP-067). A reentrant checkpoint is another matter: its forward comes before its own backward.
        """
        backward = self.reducer.forwards.running_backward
        return backward is not None and backward == kernels.backward_id()

    def _begin_iteration(self, due: list[Stage], *, sync: bool) -> None:
        """Inside a join: call the roll, unless this is an evaluation, which needs nobody."""
        if self._iteration.session is None:
            return
        if due or torch.is_grad_enabled() or self._check_sync_bufs_post_fwd():
            self._iteration.begin(due, likely=sync and not due and self.reducer.queue.only_sums)

    def _to_module(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments on the device and in the dtype in which the module runs."""
        if self.device_ids:
            inputs = self._to_own_device(inputs)
            kwargs = self._to_own_device(kwargs)
        if self._mixed_precision_run is not None:
            inputs, kwargs = self._mixed_precision_run.before_forward(inputs, kwargs)
        return inputs, kwargs

    def _to_own_device(self, value: Any) -> Any:
        """A structure with all its tensors on the single device of the module (DDP-046, DDP-023)."""
        beside = self.use_side_stream_for_tensor_copies
        return map_tensors(lambda tensor: streams.brought_to(self.device, tensor, beside=beside), value)

    def _run_ddp_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The wrapped forward; while it runs, ``_get_active_ddp_module`` tells this object (DDP-042, DDP-043)."""
        outer, running.ddp = running.ddp, self
        try:
            return self.module(*inputs, **kwargs)
        finally:
            running.ddp = outer

    def _post_forward(self, output: Any) -> Any:
        if self._recomputes():
            return output
        if self._delayed is not None:
            self._delayed.after_forward(sync=self.require_backward_grad_sync)
        if self._mixed_precision_run is not None:
            self._mixed_precision_run.after_forward()
        if self._check_sync_bufs_post_fwd():
            self._iteration.announce(Stage.BUFFERS_AFTER)
            stages.perform(self, Stage.BUFFERS_AFTER)
        if not torch.is_grad_enabled():
            if not self._evaluates_alone():  # else the others know nothing of it
                self._sync_due_after_evaluation |= self.require_forward_param_sync
                self.require_forward_param_sync = False  # a row of evaluations synchronises buffers once
            return output
        if self._sync_due_after_evaluation:
            self._sync_due_after_evaluation = False
        pending = PendingBackward(sync=self.require_backward_grad_sync)
        if self.require_forward_param_sync is not pending.sync:  # for a module, setting an attribute is dear
            self.require_forward_param_sync = pending.sync
        output = self._prepare_backward(output, pending)
        self.reducer.admit(pending)
        return output

    def _prepare_backward(self, output: Any, pending: PendingBackward) -> Any:
        """Arrange that the coming backward announces itself; find out which parameters it can reach."""
        found = find_tensors(output)
        if pending.sync:  # also where a sink follows: a container may keep the tensors that it was made with
            announce_backward(found, pending, self.reducer.begin)
        if not (self.reducer.usage.searched or self.reducer.facts.holds_back):
            return output
        if pending.sync and self.reducer.usage.searched:
            reached = reachable_parameters(found, self.reducer.readiness.index_of)
            pending.unused = set(range(len(self.reducer.parameters))) - reached
        tensors = {tensor: None for tensor in found if tensor.grad_fn is not None}
        if not tensors:
            return output
        tied = OutputSink.tie(self.reducer.begin, pending, self._ddp_sink_clone, list(tensors))
        instead = dict(zip(tensors, tied, strict=True))
        return map_tensors(lambda tensor: instead.get(tensor, tensor), output)

    def _lazy_init(self) -> None:
        """What can only be set up when training begins, such as optimizers attached after wrapping (DDP-130)."""
        if self._mixed_precision_run is None:
            params.check_gradient_dtypes(self.reducer.specs, self.reducer.parameters, self._log_and_throw)
        carried = OptimizersInBackward.of(self.reducer.parameters)
        self.reducer.optimizers[:0] = [] if carried is None else [carried]
        self._lazy_init_ran = True

    def _note_rebuilt(self) -> None:
        self._has_rebuilt_buckets = True
        if self.logger is not None:
            self.logger.note_plan(self.reducer.plan, self.reducer.specs, rebuilt=True)

    # -- accumulation

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forwards inside only accumulate local gradients; the first forward-backward after it reduces the sum.

        What counts is where the forward runs (DDP-072 … DDP-076).
        """
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    # -- hooks on communication

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """Let ``hook(state, bucket)`` reduce each bucket instead of the built-in averaging.

        The hook returns a future of one tensor shaped like ``bucket.buffer()``, which becomes the gradients
        (COMM-001). It is given raw local gradients (COMM-002).

        Raises:
            TypeError: not callable, or bfloat16 compression without support. ValueError: wrong annotations.
            RuntimeError: a hook is registered already (COMM-007).
        """
        hooks.check_comm_hook(hook, self._log_and_throw)
        assert self.logger is not None, "registering a communication hook requires the logger"
        self._occupy_hook_slot(state, hook, hooks.hook_name(hook))

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        """Register one of the two built-in hooks by its enumeration member, ours or torch's (COMM-017, COMM-018)."""
        assert self.logger is not None, "registering a communication hook requires the logger"
        kind, hook = hooks.builtin_hook(comm_hook_type)
        self._occupy_hook_slot(None, hook, str(kind))

    def _occupy_hook_slot(self, state: object, hook: Any, name: str) -> None:
        if self.reducer.transport.hook is not None:
            self._log_and_throw(
                RuntimeError,
                f"register_comm_hook or register_builtin_comm_hook can only be called once; {name} cannot replace the "
                "hook that is registered. Usual cause: mixed_precision or an optimizer in backward uses the only slot.",
            )
        self.reducer.transport.hook = (state, hook)
        self._comm_hooks.append((hook, state))
        self.logger._set_comm_hook_name(name)  # type: ignore[union-attr]

    def _register_buffer_comm_hook(
        self,
        state: object,
        hook: BufferHook,
        comm_hook_location: _BufferCommHookLocation = _BufferCommHookLocation.POST_FORWARD,
    ) -> None:
        """Let ``hook(state, {name: buffer})`` synchronise buffers instead of the broadcast (DDP-091 … DDP-098).

        It may return a list of futures; they are done when backward returns. The location is a member of our
        enumeration or of torch's; TypeError for anything else.
        """
        assert callable(hook), "a buffer communication hook must be callable"
        self._iteration.buckets_only = False
        self._buffer_hook = _BufferCommHook(hook, state, _BufferCommHookLocation.of(comm_hook_location))

    # -- buffers

    def _assign_modules_buffers(self) -> None:
        """Look the managed buffers up again: a module may have replaced them (DDP-084)."""
        self.named_module_buffers = params.managed_buffers(self.module, self.parameters_to_ignore)
        self.modules_buffers = list(self.named_module_buffers.values())

    def will_sync_module_buffers(self) -> bool:
        """Whether this forward synchronises buffers (DDP-081, DDP-088)."""
        made_up_for = torch.is_grad_enabled() and self._sync_due_after_evaluation
        allowed = self.require_forward_param_sync or made_up_for
        wanted = allowed and self.forward_sync_buffers and not self._evaluates_alone()
        return wanted and len(self.modules_buffers) > 0

    def _evaluates_alone(self) -> bool:
        """Whether this forward is an evaluation that needs nobody, so that any rank may run it (exceeds DDP-048)."""
        if self.training or torch.is_grad_enabled():
            return False
        return self._iteration.session is not None or not self.require_backward_grad_sync

    def _check_sync_bufs_pre_fwd(self) -> bool:
        """Whether that happens before the wrapped forward."""
        before = _BufferCommHookLocation.PRE_FORWARD
        hook = self._buffer_hook
        return self.will_sync_module_buffers() and (hook is None or hook.buffer_comm_hook_location is before)

    def _check_sync_bufs_post_fwd(self) -> bool:
        """Whether that happens after the wrapped forward."""
        after = _BufferCommHookLocation.POST_FORWARD
        hook = self._buffer_hook
        return (
            hook is not None and hook.buffer_comm_hook_location is after and self.will_sync_module_buffers()
        )

    def _keeps_buffers(self) -> bool:
        """Whether a broadcast of the buffers would change nothing: this rank is their source and nobody trains beside.

        Joined ranks get them with the final model.
        """
        session = self._iteration.session
        return session is not None and session.alone and self._buffer_hook is None

    def _shadow_delayed(self) -> None:
        if self._delayed is not None:
            self._delayed.shadow()

    def _sync_module_buffers(self) -> None:
        """Synchronise buffers now: by the user's hook, or from the source."""
        self._assign_modules_buffers()
        if self._buffer_hook is not None:
            tally = self.reducer.team.tally
            tally.count()  # for all that the hook starts, and again where it has returned
            with torch.no_grad():
                self.reducer.other_futures.extend(self._buffer_hook.call(self.named_module_buffers))
            tally.count()
        else:
            self._broadcast_buffers(self._iteration.likely_source())

    _sync_buffers = _sync_module_buffers  # the name by which subclasses in other libraries know it

    def _broadcast_buffers(self, source: GroupRank) -> None:
        team, watch = self.reducer.team, self._iteration.watch()
        broadcast_coalesced(
            team, self.modules_buffers, source, "buffers", self.broadcast_bucket_size, watch, self._iteration.source
        )

    # -- as a module

    def _apply(self, fn: Any, recurse: bool = True) -> DistributedDataParallel:
        """Move or cast the wrapped module (``to``, ``double`` …); its gradients are still watched."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if "reducer" in self.__dict__:
            self.reducer.watch_anew()
        return self

    def train(self, mode: bool = True) -> DistributedDataParallel:
        """Switch the wrapped module; returns this object (DDP-039)."""
        super().train(mode)
        return self

    def __getattr__(self, name: str) -> Any:
        """Attributes that this object lacks come from the wrapped module (DDP-040)."""
        modules = self.__dict__.get("_modules", {})
        if name == "module" and "module" in modules:  # asked in every forward
            return modules["module"]
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module" or "module" not in modules:
                raise
            return getattr(modules["module"], name)

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(
        module: nn.Module, params_and_buffers_to_ignore: Iterable[str]
    ) -> None:
        """Exclude named parameters and buffers of ``module`` before it is wrapped (DDP-149 … DDP-151)."""
        params.ignore(module, params_and_buffers_to_ignore)


# Trainers, savers of checkpoints and torch itself look through a wrapper by asking whether it is one of torch's.
nn.parallel.DistributedDataParallel.register(DistributedDataParallel)  # type: ignore[attr-defined]
