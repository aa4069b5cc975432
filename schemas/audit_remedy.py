"""Provides decorators for an audit check's function that declare the remedy for a failed check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from schemas.records import AuditAction

_Find = TypeVar("_Find")
_Find_co = TypeVar("_Find_co", covariant=True)


class Remedied(NamedTuple, Generic[_Find_co]):
    """An audit check's function, with the action to take if a finding fails, and the action's description."""

    find: _Find_co
    action: AuditAction
    text: str


class _Remedy:
    """Decorators for a check's function, one per action, such as `@remedy.reset("Reset all GPUs")`."""

    def __call__(self, action: AuditAction, text: str) -> Callable[[_Find], Remedied[_Find]]:
        return lambda find: Remedied(find, action, text)

    def monitor(self, text: str) -> Callable[[_Find], Remedied[_Find]]:
        return self(AuditAction.MONITOR, text)

    def reset(self, text: str) -> Callable[[_Find], Remedied[_Find]]:
        return self(AuditAction.RESET, text)

    def reboot(self, text: str) -> Callable[[_Find], Remedied[_Find]]:
        return self(AuditAction.REBOOT, text)

    def isolate(self, text: str) -> Callable[[_Find], Remedied[_Find]]:
        return self(AuditAction.ISOLATE, text)

    def replace(self, text: str) -> Callable[[_Find], Remedied[_Find]]:
        return self(AuditAction.REPLACE, text)


remedy: Final = _Remedy()
