from typing import Final

from native.core.columns import ProbeColumns

MAX_SAMPLES: Final[int]
MAX_GROUPS: Final[int]
MAX_NAME_CHARS: Final[int]

class BadBatch(ValueError):
    reason: str
    def __init__(self, reason: str, detail: str) -> None: ...

def decode_probe_batch(data: bytes | bytearray | memoryview, start: int = 0) -> ProbeColumns: ...
def encode_probe_batch(columns: ProbeColumns) -> bytes: ...
