"""ProbeBatch in and out: equal to fastavro on honest batches, one clear refusal for everything else."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.core import (
    BadBatch,
    NameCache,
    ProbeColumns,
    batches_of,
    decode_probe_batch,
    decode_probe_batches,
    encode_probe_batch,
)
from native.core.decode import MAX_GROUPS, MAX_NAME_CHARS, MAX_SAMPLES
from schemas import codec
from tests.examples import examples

BOUND = 2**62
COLUMNS = ("sent", "forward", "turnaround", "reverse")
REASONS = {
    symbol
    for field in codec.raw_schema("Reject")["fields"]
    if field["name"] == "reason"
    for symbol in field["type"]["symbols"]
}

longs = st.one_of(st.integers(-200, 200), st.integers(-(2**31), 2**31), st.integers(-BOUND, BOUND))
int64 = st.integers(-(2**63), 2**63 - 1)
count = st.integers(0, 10**7)
names = st.sampled_from(["h1/eth0", "hôst-1/mlx5_0", "gpu-1.rack/enp1s0f0np0"])


@st.composite
def groups(draw):
    n = draw(st.integers(0, 9))
    spacing_ns = draw(st.sampled_from([0, 0, 20_000, 10**9])) if n % 2 == 0 else 0
    column = st.lists(longs, min_size=n, max_size=n)
    stamps = draw(st.lists(st.integers(-BOUND // 2, BOUND // 2), min_size=n, max_size=n))
    return {
        "peer": draw(names),
        "path": draw(st.integers(0, 65_535)),
        "spacing_ns": spacing_ns,
        "sent": [int(b - a) for a, b in zip([0, *stamps], stamps, strict=False)],
        "forward": draw(column),
        "turnaround": draw(column),
        "reverse": draw(column),
        "lost": draw(count),
        "no_t3": draw(count),
        "dscp": draw(st.integers(0, 63)),
        "ecn": draw(count),
        "forward_ce": [i for i in range(n) if draw(st.booleans())],
        "reverse_ce": [i for i in range(n) if draw(st.booleans())],
    }


records = st.fixed_dictionaries(
    {
        "nic": names,
        "run": int64,
        "batch": st.integers(0, 2**62),
        "clock_ns": st.integers(-BOUND, BOUND),
        "system_ns": st.integers(-BOUND, BOUND),
        "samples": st.lists(groups(), max_size=5),
    }
)

HONEST = {
    "nic": "hôst-1/eth0",
    "run": -5,
    "batch": 7,
    "clock_ns": 1_763_700_000_000_000_000,
    "system_ns": 12,
    "samples": [
        {
            "peer": "b/eth0",
            "path": 40_000,
            "spacing_ns": 20_000,
            "sent": [1_763_700_000_000_000_000, 20_000],
            "forward": [3_005_000, 3_004_990],
            "turnaround": [9_000, 8_000],
            "reverse": [-2_994_000, -2_994_100],
            "lost": 1,
            "no_t3": 2,
            "dscp": 26,
            "ecn": 2,
            "forward_ce": [0, 1],
            "reverse_ce": [1],
        },
        {
            "peer": "c/eth0",
            "path": 0,
            "spacing_ns": 0,
            "sent": [5],
            "forward": [-(2**62)],
            "turnaround": [0],
            "reverse": [2**62],
            "lost": 0,
            "no_t3": 0,
            "dscp": 0,
            "ecn": 0,
            "forward_ce": [],
            "reverse_ce": [0],
        },
    ],
}


def body_of(record):
    return codec.encode("ProbeBatch", record)[codec.HEADER_BYTES :]


def with_group(**changes):
    return {**HONEST, "samples": [{**HONEST["samples"][0], **changes}]}


def check_invariants(columns):
    n, g = len(columns.sent), len(columns.peers)
    assert all(len(getattr(columns, name)) == n for name in COLUMNS)
    assert all(len(getattr(columns, name)) == g for name in ("path", "spacing_ns", "lost", "no_t3"))
    assert columns.start[0] == 0
    assert columns.start[-1] == n
    assert (np.diff(columns.start) >= 0).all()


@given(records)
@settings(max_examples=examples(500))
def test_equals_fastavro_and_writes_the_same_bytes(record_of, record):
    message = codec.encode("ProbeBatch", record)
    start = codec.body_start(message, "ProbeBatch")
    columns = decode_probe_batch(message, start)
    check_invariants(columns)
    assert record_of(columns) == codec.decode(message, "ProbeBatch") == record
    assert encode_probe_batch(columns) == message[start:]


@given(records, st.randoms(use_true_random=False))
@settings(max_examples=examples(80))
def test_reads_arrays_in_any_blocks(avro_independent, record_of, record, chance):
    body = avro_independent(record, chance)
    assert record_of(decode_probe_batch(body)) == record


def test_dtypes_and_absolute_stamps():
    columns = decode_probe_batch(body_of(HONEST))
    assert isinstance(columns, ProbeColumns)
    assert columns.sent.tolist() == [1_763_700_000_000_000_000, 1_763_700_000_000_020_000, 5]
    assert (columns.forward_ce.tolist(), columns.reverse_ce.tolist()) == ([0, 1], [1, 2])
    assert (columns.dscp.tolist(), columns.ecn.tolist()) == ([26, 0], [2, 0])
    assert [getattr(columns, name).dtype for name in COLUMNS] == [np.int64] * 4
    assert [getattr(columns, name).dtype for name in ("path", "spacing_ns", "lost", "no_t3")] == [
        np.int32
    ] * 4
    assert columns.start.dtype == np.int64


def test_every_truncation_is_refused():
    body = body_of(HONEST)
    for size in range(len(body)):
        with pytest.raises(BadBatch) as found:
            decode_probe_batch(body[:size])
        assert found.value.reason == "TRUNCATED"


def test_trailing_bytes_are_refused():
    with pytest.raises(BadBatch, match="1 bytes after the record's end") as found:
        decode_probe_batch(body_of(HONEST) + b"\0")
    assert found.value.reason == "MALFORMED"


@pytest.mark.parametrize(
    ("record", "reason", "text"),
    [
        ({**HONEST, "batch": -1}, "OUT_OF_RANGE", r"ProbeBatch.batch: -1 .*at least 0"),
        ({**HONEST, "clock_ns": 2**62 + 1}, "OUT_OF_RANGE", r"ProbeBatch.clock_ns: 4611686018427387905 "),
        ({**HONEST, "system_ns": -(2**63)}, "OUT_OF_RANGE", r"ProbeBatch.system_ns: -9223372036854775808 "),
        (with_group(path=-1), "OUT_OF_RANGE", r"samples\[0\].path: -1 .*at least 0"),
        (with_group(path=65_536), "OUT_OF_RANGE", r"path: 65536 .*at most 65535"),
        (with_group(spacing_ns=-1), "OUT_OF_RANGE", r"spacing_ns: -1"),
        (with_group(spacing_ns=10**9 + 1), "OUT_OF_RANGE", r"spacing_ns: 1000000001 .*at most 1000000000"),
        (with_group(lost=-3), "OUT_OF_RANGE", r"lost: -3"),
        (with_group(lost=2**40), "OUT_OF_RANGE", r"lost: 1099511627776"),
        (with_group(lost=2**31 - 1), "OUT_OF_RANGE", r"lost: 2147483647 .*at most 10000000"),
        (with_group(no_t3=10**7 + 1), "OUT_OF_RANGE", r"no_t3: 10000001 .*at most 10000000"),
        (with_group(no_t3=-3), "OUT_OF_RANGE", r"no_t3: -3"),
        (with_group(dscp=64), "OUT_OF_RANGE", r"dscp: 64 .*at most 63"),
        (with_group(ecn=-1), "OUT_OF_RANGE", r"ecn: -1"),
        (with_group(forward_ce=[2]), "OUT_OF_RANGE", r"forward_ce: 2 .*at most 1"),
        (with_group(reverse_ce=[-1]), "OUT_OF_RANGE", r"reverse_ce: -1 .*at least 0"),
        (with_group(reverse_ce=[1, 0]), "OUT_OF_RANGE", r"reverse_ce: 0 .*at least 2"),
        (with_group(forward_ce=[0, 1, 1]), "OUT_OF_RANGE", r"forward_ce: 3 .*at most 2"),
        (with_group(forward=[1]), "MALFORMED", r"forward: 1 elements .*expected 2 as in 'sent'"),
        (with_group(turnaround=[1, 2, 3]), "MALFORMED", r"turnaround: 3 elements"),
        (with_group(reverse=[]), "MALFORMED", r"reverse: 0 elements"),
        (with_group(sent=[1] * 3, forward=[1] * 3, turnaround=[1] * 3, reverse=[1] * 3), "MALFORMED", "even"),
        (with_group(sent=[2**62, 1]), "OUT_OF_RANGE", r"sent: 4611686018427387905 .*at most"),
        (with_group(sent=[-(2**62), -1]), "OUT_OF_RANGE", r"sent: -4611686018427387905 .*at least"),
        (with_group(sent=[2**63 - 1, 2**63 - 1]), "OUT_OF_RANGE", r"sent: 9223372036854775807"),
        (with_group(forward=[2**62 + 1, 0]), "OUT_OF_RANGE", r"forward: 4611686018427387905"),
        (with_group(peer="x" * (MAX_NAME_CHARS + 1)), "TOO_LARGE", r"peer: 513 characters"),
        (with_group(peer="x" * 5000), "TOO_LARGE", r"peer: 5000 bytes"),
        ({**HONEST, "nic": "é" * (MAX_NAME_CHARS + 1)}, "TOO_LARGE", r"nic: 513 characters"),
    ],
)
def test_implausible_values_are_refused(record, reason, text):
    with pytest.raises(BadBatch, match=text) as found:
        decode_probe_batch(body_of(record))
    assert found.value.reason == reason
    assert "\n" not in str(found.value)


def test_longest_name_and_largest_values_pass():
    record = with_group(peer="é" * MAX_NAME_CHARS, path=65_535, lost=10**7, sent=[2**62, -(2**62)])
    assert decode_probe_batch(body_of(record)).sent.tolist() == [2**62, 0]


def read_or_refused(body):
    """The columns, or None where they were refused with a reason that a Reject can carry."""
    try:
        columns = decode_probe_batch(body)
    except BadBatch as refused:
        if refused.reason not in REASONS:
            raise
        return None
    check_invariants(columns)
    return columns


def head(avro_long):
    return avro_long(1) + b"a" + avro_long(0) * 4


def test_varints_that_are_too_long(avro_long):
    for tail in (b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x02", b"\x80" * 30):
        with pytest.raises(BadBatch, match="beyond 64 bits") as found:
            decode_probe_batch(avro_long(1) + b"a" + tail + b"\0" * 20)
        assert found.value.reason == "MALFORMED"


def test_invalid_utf8(avro_long):
    for bad in (b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80"):
        with pytest.raises(BadBatch, match="expected UTF-8") as found:
            decode_probe_batch(avro_long(len(bad)) + bad + avro_long(0) * 5)
        assert found.value.reason == "MALFORMED"


def test_counts_that_the_bytes_cannot_hold(avro_long):
    for n in (2**20, 2**40, 2**63 - 1, -(2**40)):
        size = avro_long(5) if n < 0 else b""
        with pytest.raises(BadBatch) as found:
            decode_probe_batch(head(avro_long) + avro_long(n) + size + b"\0" * 50)
        assert found.value.reason == "TRUNCATED"
    with pytest.raises(BadBatch) as found:
        decode_probe_batch(head(avro_long) + avro_long(-(2**63)) + b"\0" * 50)
    assert found.value.reason == "OUT_OF_RANGE"


def test_blocks_that_lie_about_their_size(avro_long):
    group = avro_long(0) * 13
    honest = head(avro_long) + avro_long(-1) + avro_long(len(group)) + group + avro_long(0)
    assert decode_probe_batch(honest).peers == [""]
    for size in (len(group) - 1, len(group) + 1, 0):
        with pytest.raises(BadBatch, match="stated size") as found:
            decode_probe_batch(head(avro_long) + avro_long(-1) + avro_long(size) + group + avro_long(0))
        assert found.value.reason == "MALFORMED"
    with pytest.raises(BadBatch) as found:
        decode_probe_batch(head(avro_long) + avro_long(-1) + avro_long(-9) + group + avro_long(0))
    assert found.value.reason == "OUT_OF_RANGE"


def test_limits_of_groups_and_samples(avro_long):
    group = avro_long(0) * 13
    largest = head(avro_long) + avro_long(MAX_GROUPS) + group * MAX_GROUPS + avro_long(0)
    assert len(decode_probe_batch(largest).peers) == MAX_GROUPS
    more = head(avro_long) + avro_long(MAX_GROUPS) + group * MAX_GROUPS + avro_long(1) + group + avro_long(0)
    with pytest.raises(BadBatch, match="65537 elements") as found:
        decode_probe_batch(more)
    assert found.value.reason == "TOO_LARGE"
    n = MAX_SAMPLES + 1
    array = avro_long(n) + b"\0" * n + avro_long(0)
    big = head(avro_long) + avro_long(1) + avro_long(0) * 3 + array * 4 + avro_long(0) * 3
    with pytest.raises(BadBatch, match=f"{n} samples") as found:
        decode_probe_batch(big)
    assert found.value.reason == "TOO_LARGE"


def test_memory_follows_the_bytes_not_the_claims(avro_long):
    """A claim that passes the first check still makes no more than 32 bytes an element of 4 bytes."""
    n = 200_000
    body = head(avro_long) + avro_long(1) + avro_long(0) * 3 + avro_long(n) + b"\x80" * (4 * n)
    tracemalloc.start()
    try:
        with pytest.raises(BadBatch):
            decode_probe_batch(body)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=300))
@settings(max_examples=examples(500))
def test_random_bytes_never_crash(data):
    read_or_refused(data)


@given(records, st.data())
@settings(max_examples=examples(500))
def test_mutations_are_read_or_refused(record, data):
    body = bytearray(body_of(record))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        match data.draw(st.sampled_from(["set", "insert", "delete", "cut"])):
            case "set":
                body[at] = data.draw(st.integers(0, 255))
            case "insert":
                body[at:at] = data.draw(st.binary(max_size=12))
            case "delete":
                del body[at]
            case "cut":
                del body[at:]
        if not body:
            break
    columns = read_or_refused(bytes(body))
    if columns is not None:
        assert encode_probe_batch(columns)


def test_takes_any_buffer_and_checks_the_start():
    message = codec.encode("ProbeBatch", HONEST)
    for kind in (bytes, bytearray, memoryview):
        assert decode_probe_batch(kind(message), codec.HEADER_BYTES).nic == "hôst-1/eth0"
    for start in (-1, len(message) + 1):
        with pytest.raises(IndexError, match="expected 0 to"):
            decode_probe_batch(message, start)
    with pytest.raises(TypeError):
        decode_probe_batch("text", 0)


def test_columns_do_not_share_memory_with_the_message():
    body = bytearray(body_of(HONEST))
    columns = decode_probe_batch(body)
    before = columns.forward.copy()
    body[:] = b"\0" * len(body)
    assert (columns.forward == before).all()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lost": [-1]}, "lost -1"),
        ({"path": [70_000]}, "path 70000"),
        ({"path": [1, 2]}, "expected 1 as in peers"),
        ({"spacing_ns": [5]}, "even number"),
        ({"forward": [1, 2]}, "expected 3 as in sent"),
        ({"start": [0, 2]}, "from 0 to 3"),
        ({"start": [1, 3]}, "from 0 to 3"),
        ({"sent": [-(2**62), 2**62, 0]}, "differs by more than"),
        ({"sent": [0.5, 1.5, 2.5]}, "expected one dimension of int64"),
        ({"peers": ["x" * 513]}, "at most 512"),
        ({"peers": [5]}, "expected a string"),
        ({"batch": -1}, "batch -1"),
        ({"dscp": [64]}, "dscp 64"),
        ({"ecn": [1, 2]}, "expected 1 as in peers, or none"),
        ({"forward_ce": [3]}, "ascending indices below 3"),
        ({"reverse_ce": [1, 1]}, "ascending indices below 3"),
    ],
)
def test_encoder_refuses_columns_that_do_not_fit(columns_of, changes, text):
    columns = columns_of([("b", 1, 0, [1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3])])
    for name, value in changes.items():
        if isinstance(value, list) and name != "peers":
            value = np.array(
                value, np.int32 if name in ("lost", "path", "spacing_ns", "dscp", "ecn") else None
            )
        setattr(columns, name, value)
    with pytest.raises(ValueError, match=text):
        encode_probe_batch(columns)


def test_encoder_takes_start_that_runs_back(columns_of):
    columns = columns_of([("b", 1, 0, [1], [1], [1], [1]), ("c", 1, 0, [1], [1], [1], [1])])
    columns.start = np.array([0, 5, 2], np.int64)
    with pytest.raises(ValueError, match=r"start\[1\] 5: expected 0 to 2"):
        encode_probe_batch(columns)


def test_big_batch_round_trip(simulated):
    rng = np.random.default_rng(3)
    columns = simulated(rng, samples=20_000, offset_ns=3e6, drift_ppb=12_000)
    again = decode_probe_batch(encode_probe_batch(columns))
    for name in (*COLUMNS, "start", "path", "spacing_ns"):
        assert (getattr(again, name) == getattr(columns, name)).all(), name


def test_fuzz_of_many_seeds(simulated):
    """Plain random mutations, many and fast: nothing but a batch or a refusal comes out."""
    chance = random.Random(11)
    body = encode_probe_batch(simulated(np.random.default_rng(1), samples=64))
    read = 0
    for _ in range(5_000):
        mutated = bytearray(body)
        for _ in range(chance.randint(1, 3)):
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        del mutated[len(mutated) - chance.choice([0, 0, 1, 7]) :]
        read += read_or_refused(mutated) is not None
    assert 0 < read < 5_000


def test_a_bad_message_is_refused_alone():
    good = [body_of({**HONEST, "batch": number}) for number in range(3)]
    values = [good[0], good[1][:-3], good[1], b"", None, good[2]]
    batches = decode_probe_batches(values, [0] * len(values))
    assert [number for number, _ in batches.errors] == [1, 3]
    assert {error.reason for _, error in batches.errors} == {"TRUNCATED"}
    heads = [batches.head(number) for number in range(len(values))]
    assert [head and head[2] for head in heads] == [0, None, 1, None, None, 2]
    for number, body in ((0, good[0]), (2, good[1]), (5, good[2])):
        assert encode_probe_batch(batches.columns(number)) == encode_probe_batch(decode_probe_batch(body))
    with pytest.raises(ValueError, match="refused"):
        batches.columns(1)
    with pytest.raises(IndexError, match="expected 0 to 5"):
        batches.head(6)


@pytest.mark.parametrize(
    ("key", "reason"), [(b"other/eth0", "WRONG_KEY"), (None, "WRONG_KEY"), (HONEST["nic"].encode(), None)]
)
def test_a_key_must_be_the_batch_s_nic(key, reason):
    batches = decode_probe_batches([body_of(HONEST)], [0], [key])
    assert [error.reason for _, error in batches.errors] == ([reason] if reason else [])


def test_each_name_is_checked_when_it_is_new():
    checked = []

    def first_wrong(names):
        checked.extend(names)
        return next((name for name in names if "/" not in name), None)

    names = NameCache(first_wrong, "host/device")
    right = body_of(HONEST)
    wrong = body_of({**HONEST, "nic": "nobody"})
    for _ in range(3):
        batches = decode_probe_batches([right, wrong, right], [0] * 3, None, names)
        assert [number for number, _ in batches.errors] == [1]
        assert "ProbeBatch.nic: 'nobody', expected host/device" in str(batches.errors[0][1])
    assert checked.count("nobody") == 3, "a wrong name is not remembered"
    assert checked.count(HONEST["nic"]) == 1


def test_a_copy_of_columns_is_read_like_a_message():
    columns = decode_probe_batch(body_of(HONEST))
    copies = batches_of([columns, None, columns])
    assert [copies.head(number) is None for number in range(3)] == [False, True, False]
    assert copies.samples == 2 * len(columns.sent)
    for number in (0, 2):
        assert encode_probe_batch(copies.columns(number)) == encode_probe_batch(columns)
