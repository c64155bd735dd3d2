"""A first check, to see the frame stand."""

from conformance.checking import MANY, check


class _Counter:
    """Builds a recording joinable on the subject's own base classes."""

    @staticmethod
    def build(ctx):
        subject = ctx.subject

        class Hook(subject.JoinHook):
            def __init__(self, log):
                self.log = log

            def main_hook(self):
                self.log.append("main")

            def post_hook(self, is_last_joiner):
                self.log.append(("post", is_last_joiner))

        class Counter(subject.Joinable):
            def __init__(self):
                super().__init__()
                self.log = []

            def join_hook(self, **kwargs):
                return Hook(self.log)

            @property
            def join_device(self):
                return ctx.device

            @property
            def join_process_group(self):
                return ctx.group

        return Counter()


def count_main_hooks(ctx, schedule):
    counter = _Counter.build(ctx)
    with ctx.subject.Join([counter]):
        for _ in range(schedule[ctx.rank]):
            ctx.subject.Join.notify_join_context(counter)
    return counter.log.count("main")


@check("JOIN-025", worlds=MANY)
def test_main_hooks_make_up_each_ranks_deficit(ranks):
    schedule = [2 + rank for rank in range(ranks.world)]
    calls = ranks(count_main_hooks, schedule)
    assert calls == [max(schedule) - mine for mine in schedule]
