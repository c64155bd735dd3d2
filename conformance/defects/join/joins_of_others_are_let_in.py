"""Another implementation's Join may enable a model, whose joined ranks it cannot lead."""

from impl.join.hooks import Follower, _JoinConfig

from ..planting import swap

CLAUSES = ("JOIN-056",)


def plant() -> None:
    def enable(self: Follower, config: _JoinConfig) -> None:
        self._followed_config = _JoinConfig(*config)

    right = vars(Follower)["_join_config"]
    swap(Follower, "_join_config", right.setter(enable))
