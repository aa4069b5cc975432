from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from native.core.columns import Float64s, Int64s

class BadArray(ValueError):
    reason: str
    array: int
    detail: str

def encode_arrays(columns: Sequence[NDArray[Any]], kinds: str) -> bytes: ...
def decode_arrays(data: bytes, start: int, kinds: str, max_elements: int) -> list[NDArray[Any]]: ...
def first_outside(columns: Sequence[NDArray[Any]], whole_limits: Int64s, limits: Float64s) -> int: ...
