"""Compressed request bodies: consecutive frames, truncated ones, and ones that decompress to too much."""

import gzip
import sys
import zlib

import lz4.frame
import pytest

from fabrictime.history import bodies

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PACK = {"gzip": gzip.compress, "deflate": zlib.compress, "lz4": lz4.frame.compress, "zstd": zstd.compress}
CONTENT = bytes(range(256)) * 9000


@pytest.mark.parametrize("encoding", PACK)
def test_all_frames_of_a_body_are_read(encoding):
    packed = PACK[encoding](CONTENT) * 3
    assert bodies.unpack(packed, encoding, 10 * len(CONTENT)) == CONTENT * 3


@pytest.mark.parametrize("encoding", PACK)
def test_a_cut_body_is_refused(encoding):
    packed = PACK[encoding](CONTENT)
    for end in (len(packed) - 1, len(packed) // 2, 3):
        with pytest.raises(bodies.BadBody):
            bodies.unpack(packed + packed[:end], encoding, 10 * len(CONTENT))


@pytest.mark.parametrize("encoding", PACK)
def test_a_body_that_decompresses_to_too_much_is_refused(encoding):
    with pytest.raises(bodies.TooLarge):
        bodies.unpack(PACK[encoding](bytes(50_000_000)), encoding, 1_000_000)


def test_an_unknown_encoding_is_named():
    with pytest.raises(bodies.BadBody, match="snappy"):
        bodies.unpack(b"x", "snappy", 10)
