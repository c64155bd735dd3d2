"""DistributedDataParallel: wraps a module and averages its gradients over a process group."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import scatter_gather

from ..arguments import flag
from ..comm import streams
from ..comm.collectives import broadcast_coalesced
from ..comm.ranks import GroupRank, Team
from ..join import Follower, Join, Joinable, JoinHook
from . import compat, hooks, kernels, params, parts, pickling
from . import config as options
from .buffers import BufferHook, BufferSync, _BufferCommHook, _BufferCommHookLocation
from .compat import KeptBy
from .config import DDPConfig
from .containers import map_tensors
from .delayed import DelayedReduction, delayable
from .iteration import Iteration, Moment
from .join_hook import UnevenInputs, _DDPJoinHook
from .log import DDPLogger, Entry
from .messages import describe_added
from .mixed_precision import MixedPrecisionRun, _MixedPrecision
from .optimizer_in_backward import OptimizersInBackward, check_fused
from .pending_backward import with_graphs
from .per_parameter import PerParameterReduction
from .plan import BucketCaps
from .reducer import Reducer
from .registrations import registrations
from .stages import order_of

_NONE_GIVEN: Mapping[torch.Tensor, Any] = MappingProxyType({})
_NO_CONTEXT = nullcontext()


class Running:
    """The object whose wrapped forward is running in this process; None outside every forward.

    Not an attribute of the class DistributedDataParallel: setting one makes Python forget what it knows of the class.
    """

    def __init__(self) -> None:
        self.ddp: DistributedDataParallel | None = None


running = Running()


def _attached() -> int:
    """How many optimizers of this process step their parameters in backward: where that changes, it is time to look."""
    module = sys.modules.get("torch.distributed.optim.apply_optimizer_in_backward")
    handles: Mapping[torch.Tensor, Sized] = getattr(module, "param_to_optim_hook_handle_map", {})
    return sum(len(each) for each in handles.values()) if handles else 0


class DistributedDataParallel(Follower, nn.Module):
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
        gradient_as_bucket_view: let ``.grad`` be views of the communication buffers after the first iteration (not
            where another wrapper, around this one or beside it, averages some of them in the same backward).
        static_graph: promise that every iteration uses the same parameters in the same way.
        delay_all_reduce_named_params: (name, parameter) pairs to be reduced in one piece, after all others.
        param_to_hook_all_reduce: what they wait for in torch's DDP, whose gradient need not come here. Both or neither.
        mixed_precision: lower dtypes for parameters, reduction and buffers.
        device_mesh: a one-dimensional mesh instead of ``process_group``.
        skip_all_reduce_unused_params: leave parameters that no rank uses out of later reductions; those must be
            alike on all ranks throughout training.
        bucket_cap_mb_list: sizes in MiB of the first buckets, one by one; the last holds for all further ones.
        batched_grad_copy: accepted; gradients are always copied bucket by bucket here (DDP-120).
        forward_sync_buffers: False switches off the buffer broadcast in forward, but not the one at construction.

    Raises:
        ValueError, RuntimeError: for arguments that do not fit each other, and on every rank when ranks hold different
            models (DDP-001 … DDP-032).
    """

    # -- fixed by the constructor
    module: nn.Module
    process_group: dist.ProcessGroup  # changes only in ``_update_process_group``
    _config: DDPConfig
    device: torch.device  # the config's, like the other options of torch's names
    device_type: str
    parameters_to_ignore: set[str]
    _module_parameters: list[nn.Parameter]  # the managed ones, frozen ones included

    # -- its parts: built by the constructor, and anew after unpickling
    _iteration: Iteration
    _buffer_sync: BufferSync
    reducer: Reducer
    logger: DDPLogger | None  # None until the reducer is built
    _delayed: DelayedReduction | None
    _mixed_precision_run: MixedPrecisionRun | None
    _per_parameter: PerParameterReduction
    _uneven: UnevenInputs

    # -- of its own
    static_graph: bool  # turns True once, in ``_set_static_graph``
    _ddp_sink_clone: bool  # whether outputs that pass the sink may be changed in place
    _attached: int  # how many optimizers had been attached to parameters at the last look; -1 before the first forward
    _as_of: int  # how much had been put into modules at the last look through ours
    _added: set[str]  # parameters that were, as far as the user has been told of them

    # -- kept by a part
    #: whether the next backward is synchronised; ``no_sync`` changes it
    require_backward_grad_sync = KeptBy("_iteration", "wants_reductions")
    #: whether the next forward may synchronise buffers; each forward says so (DDP-081)
    require_forward_param_sync = KeptBy("_buffer_sync", "allowed")
    forward_sync_buffers = KeptBy("_buffer_sync", "in_forward")
    broadcast_buffers = forward_sync_buffers  # the older name
    broadcast_bucket_size = KeptBy("_buffer_sync", "chunk_bytes")
    _synchronises_after_evaluation = KeptBy("_buffer_sync", "due_after_evaluation")
    modules_buffers = KeptBy("_buffer_sync", "tensors")
    named_module_buffers = KeptBy("_buffer_sync", "named")
    _authoritative_rank = KeptBy("_uneven", "authoritative_rank")
    _divide_by_initial_world_size = KeptBy("_iteration", "divides_by_initial_world_size")
    _join_session = KeptBy("_iteration", "session")
    _has_rebuilt_buckets = KeptBy("reducer", "facts.rebuilt")
    _distributed_rank = KeptBy("reducer", "team.rank")

    # -- methods of torch's names that are a part's
    _sync_buffers = KeptBy("_buffer_sync", "synchronise")
    _assign_modules_buffers = KeptBy("_buffer_sync", "look_up")
    _find_common_rank = KeptBy("_uneven", "find_common_rank")
    _check_global_requires_backward_grad_sync = KeptBy("_uneven", "any_reduction_wanted")
    _sync_final_model = KeptBy("_uneven", "sync_final_model")
    _check_reducer_finalized = KeptBy("reducer", "check_finished")
    _remove_autograd_hooks = KeptBy("reducer", "remove_hooks")
    will_sync_module_buffers = KeptBy("_buffer_sync", "will_synchronise")
    _check_sync_bufs_pre_fwd = KeptBy("_buffer_sync", "comes_before_forward")
    _check_sync_bufs_post_fwd = KeptBy("_buffer_sync", "due_after_forward")

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
        options.check_delay_pair(delay_all_reduce_named_params, param_to_hook_all_reduce, mixed_precision)
        self.process_group = options.group_of(process_group, device_mesh)
        self._iteration.team = Team.of(self.process_group)
        if device_mesh is not None and options.is_part_of_a_mesh(device_mesh):
            kernels.keep_local_shards(module)
        self.module = module
        ignored = params.ignored_names(module)
        delayed = delayable(delay_all_reduce_named_params or (), params.managed_parameters(module, ignored))
        ignored |= delayed.keys()
        managed = params.managed_parameters(module, ignored)
        self._module_parameters = [item.parameter for item in managed]
        late = list(delayed.values())
        config = DDPConfig(
            placement=options.place(module, self._module_parameters, late, device_ids, output_device),
            dim=dim,
            device_mesh=device_mesh,
            sync_buffers=options.syncs_buffers_in_forward(broadcast_buffers, forward_sync_buffers),
            sync_buffers_at_start=broadcast_buffers is not False or forward_sync_buffers is not None,
            find_unused_parameters=flag("find_unused_parameters", find_unused_parameters),
            gradient_as_bucket_view=flag("gradient_as_bucket_view", gradient_as_bucket_view),
            skip_all_reduce_unused_params=flag("skip_all_reduce_unused_params", skip_all_reduce_unused_params),
            batched_grad_copy=flag("batched_grad_copy", batched_grad_copy),
            mixed_precision=mixed_precision,
            caps=BucketCaps.of(bucket_cap_mb, bucket_cap_mb_list),
            caps_listed=bool(bucket_cap_mb_list),
            ignored=frozenset(ignored),
            side_stream=options.side_stream_wanted(),
        )
        static_graph = flag("static_graph", static_graph)
        if flag("init_sync", init_sync):
            config = parts.synchronise_start(
                self._iteration.team, module, config, managed, delayed, self._log_and_throw, static_graph=static_graph
            )
        self._config = config
        self._delayed = DelayedReduction.of(self._iteration, late, param_to_hook_all_reduce)
        self._build_parts()
        if static_graph:
            self._set_static_graph()

    def _build_parts(self) -> None:
        """Make the other parts, as the config asks; say in which order they act, and what of them faces a join context.

        Called by the constructor and after unpickling.
        """
        self.__dict__.update(self._config.torchs_names())
        self.static_graph, self._attached, self._ddp_sink_clone = False, -1, True
        self._as_of, self._added = registrations.count, set()
        low, ignored = self._config.mixed_precision, self._config.ignored
        self._mixed_precision_run = None if low is None else MixedPrecisionRun(self.module, ignored, low)
        self.reducer = parts.reducer_of(self.module, self._config, self._iteration, self._mixed_precision_run)
        self.logger = self.reducer.log
        self._passing_sync_batchnorm_handle(self.module)
        self._per_parameter = PerParameterReduction(self.reducer.transport, self.reducer.forwards, self.logger.fail)
        self._buffer_sync = BufferSync(self.module, ignored, self._iteration, in_forward=self._config.sync_buffers)
        self._order = order_of(self.reducer, self._buffer_sync, self._delayed, self._per_parameter)
        self._iteration.follow(self._order)
        self.reducer.arrivals.delayed = self._delayed_parameters
        final = [*self._module_parameters, *self._delayed_parameters]
        self._uneven = UnevenInputs(
            self._iteration, self.reducer, self._buffer_sync, final, self._per_parameter, self.device
        )

    @property
    def _delayed_parameters(self) -> Sequence[nn.Parameter]:
        return () if self._delayed is None else self._delayed.parameters

    def _log_and_throw(self, err_type: type[Exception], err_msg: str) -> NoReturn:
        """Record an error in the logging data, then raise it (DDP-019)."""
        if self.logger is not None:
            self.logger.set_error_and_log(f"{err_type!s}: {err_msg}")
        raise err_type(err_msg)

    # -- forward

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the wrapped module; arguments and outputs pass through (DDP-036)."""
        if torch.compiler.is_compiling():
            from . import compiled

            return compiled.forward(self, inputs, kwargs)
        with kernels.profiled("DistributedDataParallel.forward"):
            inputs, kwargs = self._pre_forward(*inputs, **kwargs)
            compiler = "torch._dynamo" in sys.modules  # a part of the module may be compiled
            given = _NONE_GIVEN
            for each in (*inputs, *kwargs.values()):  # as a rule leaves, of which there is nothing to know
                if torch.is_grad_enabled() and not (isinstance(each, torch.Tensor) and each.is_leaf):
                    given = with_graphs(inputs, kwargs)
                    break
            try:
                with kernels.CompiledByBucket(self._config.caps.steady_bytes) if compiler else _NO_CONTEXT:
                    output = self._run_ddp_forward(*inputs, **kwargs)
            except BaseException as error:
                self._forward_failed(error)
                raise
            return self._post_forward(output, given)

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._recomputes():
            return self._to_module(inputs, kwargs)
        if self._attached != _attached():
            self._lazy_init()
        if self._as_of != registrations.count:
            self._look_again()
        iteration, reducer = self._iteration, self.reducer
        recorded = torch.is_grad_enabled()
        sync = recorded and iteration.wants_reductions
        if iteration.session is not None and not (recorded and self._uneven.unbroken):
            iteration.session.refuse_to_go_on()  # before the reducer forgets what has raised; else the roll call does
        if recorded:
            reducer.check_finished()
            reducer.notice_changes()
        if sync:
            reducer.times.forward_start = time.time_ns()
        with kernels.outside_transforms() if kernels.transforming() else _NO_CONTEXT:
            if iteration.session is None:
                iteration.before_forward(needed=False, likely=False)
            else:  # an evaluation needs nobody
                if recorded:
                    self._uneven.notice_casts()
                needed = recorded or self._buffer_sync.due_after_forward()
                iteration.before_forward(needed=needed, likely=sync and reducer.queue.only_sums)
        return self._to_module(inputs, kwargs)

    def _look_again(self) -> None:
        """Something has been put into a module, perhaps into ours, or a module in the place of ours."""
        self._as_of = registrations.count
        self.reducer.module = self._buffer_sync.module = self.module
        added = params.added(self.module, self._config.ignored, self._module_parameters) - self._added
        if added and torch.is_grad_enabled():  # an evaluation may have put others in for a while
            self._added |= added
            warnings.warn(describe_added(added), UserWarning, stacklevel=2)

    def _recomputes(self) -> bool:
        """Whether this forward repeats one whose backward is now running (the whole model is checkpointed).

        Such a forward only brings back activations: it is no iteration, and the backward that runs stays the one that
        is synchronised (DDP-067). A reentrant checkpoint is another matter: its forward comes before its own backward.
        """
        backward = self.reducer.forwards.running_backward
        return backward is not None and backward == kernels.backward_id()

    def _to_module(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments on the device and in the dtype in which the module runs."""
        if self._config.placement.device_ids:
            inputs = self._to_own_device(inputs)
            kwargs = self._to_own_device(kwargs)
        if self._mixed_precision_run is not None:
            inputs, kwargs = self._mixed_precision_run.before_forward(inputs, kwargs)
            self.reducer.arrivals.come_last()
        return inputs, kwargs

    def _to_own_device(self, value: Any) -> Any:
        """A structure with all its tensors on the single device of the module (DDP-046, DDP-023)."""
        side_stream = self._config.side_stream
        return map_tensors(lambda tensor: streams.brought_to(self.device, tensor, side_stream=side_stream), value)

    def _run_ddp_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The wrapped forward; while it runs, ``_get_active_ddp_module`` tells this object (DDP-042, DDP-043)."""
        outer, running.ddp = running.ddp, self
        self._iteration.records = torch.is_grad_enabled()
        try:
            return self.module(*inputs, **kwargs)
        finally:
            running.ddp = outer
            self._iteration.records = False

    def _forward_failed(self, error: BaseException) -> None:
        if self._recomputes():  # which a checkpoint ends by an exception of its own
            return
        self._uneven.note_failed_forward(error)
        if self._mixed_precision_run is not None:
            self._mixed_precision_run.after_forward(failed=True)

    def _post_forward(self, output: Any, given: Mapping[torch.Tensor, Any] = _NONE_GIVEN) -> Any:
        """``given``: the arguments with a graph of their own, and where it ended before the module saw them."""
        if self._recomputes():
            return output
        iteration, buffers = self._iteration, self._buffer_sync
        sync = iteration.wants_reductions
        if self._delayed is not None:
            self._delayed.after_forward()
        if self._mixed_precision_run is not None:
            self._mixed_precision_run.after_forward()
        for stage in iteration.due(Moment.AFTER_FORWARD):
            iteration.go_through(stage)
        if not torch.is_grad_enabled():
            buffers.evaluated()
            return output
        buffers.trained()
        return self.reducer.expect_backward(output, given, sync=sync, clone=self._ddp_sink_clone)

    def _lazy_init(self) -> None:
        """What can only be set up when training begins, such as optimizers attached after wrapping (DDP-130), or later,
        when more of them are."""
        reducer = self.reducer
        if self._mixed_precision_run is None:
            params.check_gradient_dtypes(reducer.specs, reducer.parameters, self._log_and_throw)
        carried = OptimizersInBackward.of(self._module_parameters)
        fused = [each for each in reducer.optimizers if not isinstance(each, OptimizersInBackward)]
        reducer.optimizers[:] = fused if carried is None else [carried, *fused]
        if self._delayed is not None:
            self._delayed.optimizers = OptimizersInBackward.of(self._delayed.parameters)
        self._per_parameter.refuse_beside(self._after_buckets())
        self._attached = _attached()

    @property
    def _steps_in_backward(self) -> bool:
        """Whether optimizers that are attached to parameters, or a fused one, have been found to step in backwards."""
        late = None if self._delayed is None else self._delayed.optimizers
        return bool(self.reducer.optimizers) or late is not None

    def _after_buckets(self) -> list[str]:
        """What of this object acts when buckets are reduced, by its name."""
        parts = {
            "delay_all_reduce_named_params": self._delayed,
            "mixed_precision": self._mixed_precision_run,
            "an optimizer in backward": self.reducer.optimizers,
        }
        return [name for name, part in parts.items() if part]

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
        self.logger._set_comm_hook_name(name)  # type: ignore[union-attr]

    @property
    def _comm_hooks(self) -> list[tuple[Any, Any]]:
        """(hook, state) of the one that is registered, if any."""
        hook = self.reducer.transport.hook
        return [] if hook is None else [(hook[1], hook[0])]

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
        self._buffer_sync.hook = _BufferCommHook(hook, state, _BufferCommHookLocation.of(comm_hook_location))

    def _register_fused_optim(
        self, optim: type, *args: Any, optim_params: Iterable[Any] | None = None, **kwargs: Any
    ) -> None:
        """Step ``optim(parameters, *args, **kwargs)`` in every synchronised backward (DDP-133).

        It takes the place of the communication hook: registering twice, or beside a hook, raises RuntimeError.
        """
        check_fused(optim, self._log_and_throw)
        self._per_parameter.refuse_beside([f"a fused {optim.__name__}"])
        chosen = list(optim_params) if optim_params is not None else list(self.reducer.parameters)
        made = optim(chosen, *args, **kwargs)
        late = set(self._delayed_parameters)
        if any(parameter in late for group in made.param_groups for parameter in group["params"]):
            self._log_and_throw(
                RuntimeError,
                f"The fused {optim.__name__} has delayed parameters (delay_all_reduce_named_params), whose gradients "
                "are averaged after it steps. Leave those out, and attach optimizers to them instead.",
            )
        self._occupy_hook_slot(None, hooks.default_hooks.allreduce_hook, f"fused {optim.__name__}")
        self.reducer.optimizers.append(made)

    def _set_sparse_metadata(self, global_unique_ids: dict[str, torch.Tensor]) -> None:
        """Hand the ids of sparse rows to the reducer, whichever it is by then (DDP-169)."""
        self.reducer._set_sparse_metadata(global_unique_ids)

    def _register_accum_grad_hook(self) -> None:
        """Reduce parameter by parameter instead of by bucket (DDP-167)."""
        self._per_parameter.install(self.reducer.parameters, self._after_buckets())
        self.reducer.if_thawed = self._per_parameter.watch_thawed
        self.reducer.remove_hooks()

    # -- as a module

    def _apply(self, fn: Any, recurse: bool = True) -> DistributedDataParallel:
        """Move or cast the wrapped module (``to``, ``double`` …); its gradients are still watched."""
        self.reducer.restore_full_values()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.reducer.watch_anew()
        return self

    def __getattr__(self, name: str) -> Any:
        """Attributes that this object lacks come from the wrapped module (DDP-040)."""
        if name == "module":
            return super().__getattr__(name)
        try:
            return super().__getattr__(name)
        except AttributeError:
            modules = self.__dict__.get("_modules", {})
            if "module" not in modules or name.startswith("__"):
                raise  # __deepcopy__ and its like would answer for the wrapped module
            try:
                return getattr(modules["module"], name)
            except AttributeError as error:
                raise AttributeError(f"{error}; nor has {type(self).__name__}, which wraps it", name=name) from error

    # -- among uneven inputs

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """A ``Join`` context over this model alone (DDPJ-003).

        Args:
            divide_by_initial_world_size: divide by the group's size even after ranks have run out (True), or by the
                number of ranks still active (False), which weighs late samples more.
            enable: False when inputs are known to be even.
            throw_on_early_termination: raise on all ranks when the first one runs out.
        """
        return Join(
            [self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """The hook for one context; reads ``divide_by_initial_world_size`` (True) and ignores the rest (DDPJ-004)."""
        name = "divide_by_initial_world_size"
        self._following_hook = _DDPJoinHook(self, divide_by_initial_world_size=flag(name, kwargs.get(name, True)))
        return self._following_hook

    @property
    def join_device(self) -> torch.device:
        """The device of the managed parameters."""
        return self.device

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        """The group that gradients are averaged over."""
        return self.process_group

    # -- beginning anew

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the handles of this process (DDP-155); RuntimeError unless on the default group (DDP-156)."""
        pickling.check_default_group(self.process_group, self._log_and_throw)
        self.reducer.restore_full_values()
        kept = {name: getattr(self, name) for name in pickling.KEPT_BY_PARTS}
        delayed = None if self._delayed is None else self._delayed.names(self.module, self._log_and_throw)
        return pickling.state_of(vars(self)) | kept | {"_delayed_names": delayed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Build the parts anew on the default group, with the stored settings (DDP-158, DDP-159)."""
        self.process_group = Team.of(None).group
        self._iteration = Iteration(self)
        self._iteration.team = Team.of(self.process_group)
        own, kept, delayed, static_graph = pickling.parts_of(state)
        super().__setstate__(own)  # type: ignore[no-untyped-call]
        Joinable.__init__(self)
        self.__dict__.update(own)
        self.logger = None
        self._delayed = DelayedReduction.found(self._iteration, self.module, delayed)
        self._build_parts()
        for name, value in kept.items():
            setattr(self, name, value)
        if static_graph:
            self._set_static_graph()

    def _update_process_group(self, new_process_group: Any) -> None:
        """Average over another group from now on; non-members keep theirs and must not train on (DDP-162 … 164).

        Communication hooks keep whatever group is in their state (DDP-165).
        """
        self.reducer.log.note(has_rebuilt_buckets=0)
        if new_process_group is None or new_process_group == dist.GroupMember.NON_GROUP_MEMBER:
            self.reducer.start_over()
            return
        self.process_group = new_process_group
        self._config = replace(self._config, number=None)
        self.reducer.move_to(Team.of(new_process_group))
        self._buffer_sync.begin_anew()

    def _set_static_graph(self) -> None:
        """Promise a static graph; before the first training forward (DDP-107 … DDP-109)."""
        assert self.logger is not None, "setting a static graph requires the logger"
        if self.static_graph:
            warnings.warn(
                "static_graph is set already; setting it again changes nothing.", UserWarning, stacklevel=2
            )
            return
        options.check_static_graph(
            trained=self.reducer.forwards.latest is not None,
            find_unused=self._config.find_unused_parameters,
            fail=self._log_and_throw,
        )
        self.reducer.start_over(static_graph=True)
        self.static_graph = True
        self.logger._set_static_graph()

    # -- names of torch's that other code calls

    @classmethod
    def _get_active_ddp_module(cls) -> DistributedDataParallel | None:
        """The object whose wrapped forward is running, if any (DDP-042)."""
        return running.ddp

    def _sync_module_buffers(self, authoritative_rank: int | None = None) -> None:
        """Synchronise buffers now: by the user's hook, else from this group rank (None: that whose count)."""
        if authoritative_rank is None or self._buffer_sync.hook is not None:
            self._buffer_sync.synchronise()
        else:
            self._assign_modules_buffers()
            self._default_broadcast_coalesced(authoritative_rank=authoritative_rank)

    def _distributed_broadcast_coalesced(
        self, tensors: list[torch.Tensor], buffer_size: int, authoritative_rank: int = 0
    ) -> None:
        """Overwrite tensors with a group rank's, in chunks of ``buffer_size`` bytes."""
        self._default_broadcast_coalesced(tensors, buffer_size, authoritative_rank)

    def _default_broadcast_coalesced(
        self, bufs: list[torch.Tensor] | None = None, bucket_size: int | None = None, authoritative_rank: int = 0
    ) -> None:
        """Overwrite buffers (by default the managed ones) with a group rank's, in chunks of ``bucket_size`` bytes."""
        tensors = self.modules_buffers if bufs is None else bufs
        size = bucket_size or self.broadcast_bucket_size
        broadcast_coalesced(self.reducer.team, tensors, GroupRank(authoritative_rank), "buffers", size)

    def _get_ddp_logging_data(self) -> dict[str, Entry]:
        """What this object was built with and how it runs, as one flat dictionary (DDP-144)."""
        assert self.logger is not None, "logging data require the logger"
        return self.logger._get_ddp_logging_data()

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        """Refresh run-time entries in every ``sample_rate``-th iteration after the first ten (DDP-142).

        ValueError below 1.
        """
        if sample_rate < 1:
            text = f"The sample rate is a number of iterations, at least 1, and not {sample_rate}."
            self._log_and_throw(ValueError, text)
        assert self.logger is not None, "the sampling rate requires the logger"
        self.logger.sample_rate = sample_rate

    def _set_ddp_sink_clone(self, val: bool) -> None:
        """Whether outputs that pass the sink are cloned, so that they may be changed in place (DDP-112, DDP-113)."""
        self._ddp_sink_clone = val

    def _build_params_for_reducer(self) -> tuple[list[nn.Parameter], list[bool]]:
        return list(self.reducer.parameters), [spec.sparse for spec in self.reducer.specs]

    def _build_debug_param_to_name_mapping(self, parameters: list[nn.Parameter]) -> dict[int, str]:
        return compat.names_by_place(self.module, self.parameters_to_ignore, parameters, self._log_and_throw)

    def _passing_sync_batchnorm_handle(self, module: nn.Module) -> None:
        compat.check_sync_batchnorm(module, self.device_type, self._log_and_throw)

    def _get_parameters(self, m: nn.Module, recurse: bool = True) -> Iterator[nn.Parameter]:
        return compat.parameters_or_former(m, recurse=recurse)

    @staticmethod
    def _get_data_parallel_params(module: nn.Module, named_params: bool = False) -> Iterator[Any]:
        return compat.data_parallel_parameters(module, named=named_params)

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(
        module: nn.Module, params_and_buffers_to_ignore: Iterable[str]
    ) -> None:
        """Exclude named parameters and buffers of ``module`` before it is wrapped (DDP-149 … DDP-151)."""
        params.ignore(module, params_and_buffers_to_ignore)

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        """Split tensors along ``dim`` over devices (DDP-045)."""
        return scatter_gather.scatter_kwargs(inputs, kwargs, device_ids, dim=self._config.dim)

    def to_kwargs(self, inputs: Any, kwargs: Any, device_id: int) -> Any:
        """Arguments on the given device, one tuple each for positional and keyword ones (DDP-045)."""
        device = torch.device(self.device_type, device_id)
        inputs, kwargs = (map_tensors(lambda tensor: tensor.to(device), each) for each in (inputs, kwargs))
        return (inputs,), (kwargs,)

    def gather(self, outputs: Any, output_device: Any) -> Any:
        """Bring outputs of several devices together along ``dim`` (DDP-045)."""
        return scatter_gather.gather(outputs, output_device, dim=self._config.dim)


# Trainers, savers of checkpoints and torch itself look through a wrapper by asking whether it is one of torch's.
nn.parallel.DistributedDataParallel.register(DistributedDataParallel)  # type: ignore[attr-defined]
