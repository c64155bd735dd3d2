"""The page that a team opens in the morning: static, offline, one folder."""

from .build import build

__all__ = ["build"]
