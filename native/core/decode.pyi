from collections.abc import Callable, Sequence
from typing import Final

from native.core.columns import ProbeColumns

MAX_SAMPLES: Final[int]
MAX_GROUPS: Final[int]
MAX_NAME_CHARS: Final[int]

class BadBatch(ValueError):
    reason: str
    def __init__(self, reason: str, detail: str) -> None: ...

class NameCache:
    def __init__(
        self, first_wrong: Callable[[list[str]], str | None] | None = None, expected: str = ""
    ) -> None: ...

class ProbeBatches:
    errors: list[tuple[int, BadBatch]]
    def __len__(self) -> int: ...
    @property
    def samples(self) -> int: ...
    def head(self, index: int) -> tuple[str, int, int, int, int, int, int] | None: ...
    def columns(self, index: int) -> ProbeColumns: ...

def batches_of(batches: Sequence[ProbeColumns | None]) -> ProbeBatches: ...
def decode_probe_batches(
    values: Sequence[bytes | None],
    starts: Sequence[int],
    keys: Sequence[bytes | None] | None = None,
    names: NameCache = ...,
) -> ProbeBatches: ...
def decode_probe_batch(data: bytes | bytearray | memoryview, start: int = 0) -> ProbeColumns: ...
def encode_probe_batch(columns: ProbeColumns) -> bytes: ...
