"""Record batches of Kafka."""

from aiokafka.record.default_records import DefaultRecordBatchBuilder


def build_batch(
    pairs: list[tuple[bytes | None, bytes | None]],
    producer: tuple[int, int, int] = (-1, -1, -1),
    codec: int = 0,
    timestamp: int = 1_000,
) -> bytearray:
    """Return one record batch of (key, value) pairs."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=1 << 24,
    )
    for offset, (key, value) in enumerate(pairs):
        assert builder.append(offset, timestamp, key, value, []) is not None
    return bytearray(builder.build())
