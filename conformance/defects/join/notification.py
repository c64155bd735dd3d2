"""Defects of area join: notify_join_context."""

from __future__ import annotations

from ..planting import defect, edit


@defect("JOIN-053")
def ddp_sends_buffers_first() -> None:
    """DDP sends its buffers before it tells the context that an iteration begins."""
    edit(
        "    if self.session is not None and (due or needed):",
        "    for stage in due:\n        self.order[stage].live()\n"
        "    if self.session is not None and (due or needed):",
    )
    edit("for place, stage in enumerate(due):", "for place, stage in ():", within="before_forward")


@defect("JOIN-054", "DDPJ-028", "DDPJ-038")
def evaluation_is_shadowed_as_training() -> None:
    """A joined rank shadows a backward for every forward of the live ranks, evaluations included."""
    edit(
        "    if reading.act is not None:\n        self._follow(reading.act)\n",
        "    if reading.begins is not None:\n"
        '        self._follow(Act(reading.begins, self._layout.acts[reading.begins].index("BUCKETS")))\n',
    )


@defect("JOIN-054")
def early_announcements_stay_pending_at_the_end() -> None:
    """A rank whose last forward had no backward leaves joined ranks alone in the reduction that it announced early."""
    edit("    self._shadow_pending()\n", "", within="_catch_up")


@defect("JOIN-050", worlds=(1,))
def forgotten_constructor_is_an_attribute_error() -> None:
    """A joinable whose constructor forgot the base's fails with a bare AttributeError."""
    edit('getattr(joinable, "_join_config", None)', "joinable._join_config")


@defect("JOIN-050", worlds=(1,))
def forgotten_constructor_is_not_named() -> None:
    """The error about a forgotten base constructor does not say whose it is."""
    edit(
        "f\"{type(joinable).__name__} has no join config: its constructor has not run Joinable.__init__(). \"\n"
        "            f\"Call super().__init__() in the constructor of {type(joinable).__name__}.\"",
        "'a joinable has no join config'",
    )


@defect("JOIN-049", worlds=(1,))
def group_is_asked_for_outside_a_context() -> None:
    """A notification outside a context looks up the joinable's group before it finds that there is nothing to do."""
    edit("    if not config.enable:", "    team = Team.of(joinable.join_process_group)\n    if not config.enable:")


@defect("JOIN-052", worlds=(3,))
def group_is_that_of_the_construction() -> None:
    """A notification uses the group that the joinable had when the context was built."""
    edit("group = resolved(joinable.join_process_group)", "group = self.team.group", within="notify")


@defect("JOIN-052")
def device_is_that_of_the_construction() -> None:
    """A notification uses the device that the joinable had when the context was built."""
    edit("device = torch.device(joinable.join_device)", "device = self._device", within="notify")


@defect("JOIN-051")
def notification_blocks() -> None:
    """A notification waits until every rank has notified."""
    edit("    return handle\n", "    handle.wait()\n    return handle\n", within="PlainSession.notify")


@defect("JOIN-048")
def others_return_a_handle() -> None:
    """Every joinable gets the handle of the first one's notification."""
    edit("        return None\n", "        return getattr(self, '_last', None)\n", within="PlainSession.notify")
    edit("    return handle\n", "    self._last = handle\n    return handle\n", within="PlainSession.notify")


@defect("JOIN-055")
def post_hooks_may_notify_for_nothing() -> None:
    """Notifications of a post hook count on ranks that came last, and on no others."""
    edit("        session.end()\n", "")


@defect("JOIN-055")
def shadowing_rank_notifies() -> None:
    """A rank that shadows still counts itself as active when its main hook notifies."""
    edit("if self._state is not SessionState.LIVE or not joinable", "if not joinable")


@defect("JOIN-048")
def time_limit_of_a_handle_is_ignored() -> None:
    """A handle that is given a time limit waits for as long as it takes."""
    edit("if timeout is not None:", "if False:")


@defect("JOIN-031", worlds=(2,))
def futures_hold_lists() -> None:
    """What a handle's future tells is looked for in a list, which the future of a group in Python need not hold."""
    edit("[number(pending.buffer)]", "[number(whole.value()[0])]")
