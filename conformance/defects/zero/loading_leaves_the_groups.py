"""Loading takes the states, but leaves the groups' settings as they are."""

from impl.zero.sharded import Sharded

from ..planting import edit

CLAUSES = ("ZERO-017",)


def plant() -> None:
    edit(
        Sharded, "load_state_dict",
        "    super().load_state_dict(checkpoint.own_part(state_dict, owned))\n",
        "    before = [{key: group[key] for key in group if key != 'params'} for group in self.param_groups]\n"
        "    super().load_state_dict(checkpoint.own_part(state_dict, owned))\n"
        "    for group, kept in zip(self.param_groups, before, strict=True):\n"
        "        group.update(kept)\n",
    )
