"""Queue pairs of a Python program: source ports of flow labels, and moves by the first method that works."""

import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime_client import rdma
from fabrictime_client.rdma import QueuePairError, QueuePairs, flow_label_of, source_port_of

ENUMS = (
    "IBV_QP_STATE",
    "IBV_QP_AV",
    "IBV_QP_DEST_QPN",
    "IBV_QP_RATE_LIMIT",
    "IBV_QPT_RC",
    "IBV_QPT_UD",
    "IBV_QPS_SQD",
    "IBV_QPS_RTS",
)


class PyverbsError(Exception):
    def __init__(self, message, error_code=0):
        super().__init__(message)
        self.error_code = error_code


class QueuePair:
    """A queue pair that records its changes; `refuses` maps a mask to the number of an error."""

    qp_num = 17

    def __init__(self, enums, kind="IBV_QPT_RC"):
        self.qp_type = getattr(enums, kind)
        self.changes, self.refuses = [], {}

    def query(self, mask):
        path = types.SimpleNamespace(port_num=1, sgid_index=0, flow_label=0)
        return [types.SimpleNamespace(ah_attr=path, dest_qp_num=18)]

    def modify(self, attr, mask):
        if mask in self.refuses:
            raise PyverbsError("refused", self.refuses[mask])
        self.changes.append((mask, dict(vars(attr))))


@pytest.fixture
def enums(monkeypatch):
    """A pyverbs without mlx5."""
    made = types.ModuleType("pyverbs.enums")
    vars(made).update({name: 1 << number for number, name in enumerate(ENUMS)})
    modules = {
        "pyverbs": types.ModuleType("pyverbs"),
        "pyverbs.enums": made,
        "pyverbs.qp": types.SimpleNamespace(QPAttr=types.SimpleNamespace),
        "pyverbs.pyverbs_error": types.SimpleNamespace(PyverbsError=PyverbsError),
    }
    modules["pyverbs"].enums = made
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


@given(st.integers(0xC000, 0xFFFF))
def test_a_flow_label_gives_back_its_source_port(port):
    label = flow_label_of(port)
    assert 0 < label < 1 << 20
    assert source_port_of(label) == port


@given(
    label=st.integers(1, (1 << 20) - 1),
    own=st.integers(1, (1 << 24) - 1),
    other=st.integers(1, (1 << 24) - 1),
)
def test_every_label_and_pair_of_numbers_gives_a_port_of_roce(label, own, other):
    assert 0xC000 <= source_port_of(label) <= 0xFFFF
    assert 0xC000 <= source_port_of(0, own, other) <= 0xFFFF
    assert source_port_of(0, own, other) == source_port_of(0, other, own), "both ends derive the same"


@pytest.mark.parametrize("port", [0, 0xBFFF, 0x10000])
def test_other_ports_have_no_label(port):
    with pytest.raises(QueuePairError, match="49152 to 65535"):
        flow_label_of(port)


def test_a_drained_queue_pair_is_moved_and_back_in_rts(enums):
    with QueuePairs() as pairs:
        qp = QueuePair(enums)
        key = pairs.add(qp, "rxe0")
        assert key.startswith("qp:rxe0:17:")
        assert pairs.move(key, 50_000) == (50_000, "SQD")
        assert pairs.path_of(key) == 50_000
        states = [attr.get("qp_state") for _, attr in qp.changes]
        assert states == [enums.IBV_QPS_SQD, None, enums.IBV_QPS_RTS]
        assert qp.changes[1][1]["ah_attr"].flow_label == flow_label_of(50_000)


def test_the_standby_is_the_last_resort_and_without_it_every_refusal_is_named(enums):
    with QueuePairs() as pairs:
        moved = pairs.add(QueuePair(enums, "IBV_QPT_UD"), "rxe0", standby=lambda port: port + 1)
        assert pairs.move(moved, 50_000) == (50_001, "STANDBY")
        refused = QueuePair(enums)
        refused.refuses[enums.IBV_QP_AV] = 1
        key = pairs.add(refused, "rxe0")
        with pytest.raises(QueuePairError) as error:
            pairs.move(key, 50_000)
        assert str(error.value) == (
            "UDP_SPORT: no mlx5 in this pyverbs; SQD: address vector: Operation not permitted (errno 1); "
            "STANDBY: none"
        )
        assert refused.changes[-1][1] == {"qp_state": enums.IBV_QPS_RTS}, "it goes on on its old path"


def test_a_pace_is_in_kbit_and_a_device_without_it_is_named(enums):
    with QueuePairs() as pairs:
        qp = QueuePair(enums)
        key = pairs.add(qp, "rxe0")
        assert pairs.pace(key, 1_500) == (2_000, "RATE_LIMIT")
        qp.refuses[enums.IBV_QP_RATE_LIMIT] = 95
        with pytest.raises(QueuePairError, match=r"^RATE_LIMIT: Operation not supported \(errno 95\)$"):
            pairs.pace(key, 1)
        pairs.remove(key)
        assert pairs.path_of(key) is None
        with pytest.raises(QueuePairError, match="no such queue pair"):
            pairs.pace(key, 1)


def test_without_pyverbs_the_import_error_is_the_callers(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    with pytest.raises(ImportError):
        rdma.QueuePairs()
