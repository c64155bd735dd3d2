"""Join, Joinable and JoinHook: blocks in which ranks have unequally many inputs."""

from .context import Join
from .hooks import Follower as Follower
from .hooks import FollowingHook as FollowingHook
from .hooks import Joinable, JoinHook
from .hooks import _JoinConfig as _JoinConfig

__all__ = ["Join", "JoinHook", "Joinable"]
