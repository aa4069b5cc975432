"""Type declarations of the extension module fold.pyx."""

from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

__all__ = ["KIND", "Fold", "mix"]

KIND: np.dtype[Any]

class Counts(TypedDict):
    begun: int
    ended: int
    invalid: int
    shift: int
    open: int
    slow: int

def mix(communicator: int, sequence: int) -> int: ...

class Fold:
    def __init__(self, slow_factor: float) -> None: ...
    def add(
        self,
        events: npt.NDArray[Any],
        communicators: npt.NDArray[np.uint64],
        device_count: int,
        now_raw_ns: int,
    ) -> None: ...
    def sample(self, shift: int) -> None: ...
    @property
    def counts(self) -> Counts: ...
    @property
    def kinds(self) -> int: ...
    def take_kinds(self) -> npt.NDArray[Any]: ...
    def take_kept(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]: ...
    def take_rows(self) -> npt.NDArray[Any]: ...
    def running(self, before_raw_ns: int, limit: int) -> npt.NDArray[Any]: ...
    def forget(self, before_raw_ns: int) -> None: ...
