"""A pair of RC queue pairs by pyverbs, from one NIC of the guest to another: what programs under test own."""

from __future__ import annotations

import time
from typing import Any

import fabric
import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

SIZE = 4096
_ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE


class End:
    """One NIC's device with a queue pair on it."""

    def __init__(self, nic: str) -> None:
        self.address, _ = fabric.NICS[nic]
        self.device = f"rxe_{nic}"
        self.context = Context(name=self.device)
        self.gid_index = fabric.gid_index(self.device, self.address)
        self.gid = self.context.query_gid(port_num=1, index=self.gid_index)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 256)
        self.memory = MR(self.pd, SIZE, _ACCESS)
        cap = QPCap(max_send_wr=128, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))
        attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        attr.qp_access_flags = _ACCESS
        self.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS)

    def connect(self, other: End, flow_label: int = 0, timeout: int = 14, retries: int = 6) -> None:
        """Bring the queue pair to RTS."""
        attr = QPAttr(qp_state=e.IBV_QPS_RTR)
        attr.path_mtu, attr.dest_qp_num = e.IBV_MTU_4096, other.qp.qp_num
        attr.rq_psn, attr.max_dest_rd_atomic, attr.min_rnr_timer = 0, 1, 12
        attr.ah_attr = self.path(other, flow_label)
        self.qp.modify(
            attr,
            e.IBV_QP_STATE
            | e.IBV_QP_AV
            | e.IBV_QP_PATH_MTU
            | e.IBV_QP_DEST_QPN
            | e.IBV_QP_RQ_PSN
            | e.IBV_QP_MAX_DEST_RD_ATOMIC
            | e.IBV_QP_MIN_RNR_TIMER,
        )
        attr = QPAttr(qp_state=e.IBV_QPS_RTS)
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.sq_psn, attr.max_rd_atomic = (
            timeout,
            retries,
            7,
            0,
            1,
        )
        self.qp.modify(
            attr,
            e.IBV_QP_STATE
            | e.IBV_QP_TIMEOUT
            | e.IBV_QP_RETRY_CNT
            | e.IBV_QP_RNR_RETRY
            | e.IBV_QP_SQ_PSN
            | e.IBV_QP_MAX_QP_RD_ATOMIC,
        )

    def path(self, other: End, flow_label: int) -> AHAttr:
        route = GlobalRoute(dgid=other.gid, sgid_index=self.gid_index, flow_label=flow_label, hop_limit=64)
        return AHAttr(gr=route, is_global=1, port_num=1)

    def write(self, other: End, number: int) -> None:
        """Post a write of SIZE bytes."""
        work = SendWR(
            wr_id=number,
            num_sge=1,
            sg=[SGE(self.memory.buf, SIZE, self.memory.lkey)],
            opcode=e.IBV_WR_RDMA_WRITE,
            send_flags=e.IBV_SEND_SIGNALED,
        )
        work.set_wr_rdma(other.memory.rkey, other.memory.buf)
        self.qp.post_send(work)

    def completed(self) -> list[Any]:
        """The completions there are."""
        return list(self.cq.poll(16)[1])

    def written(self, other: End, number: int = 1, limit_s: float = 20.0) -> bool:
        """Write once and wait for it; whether it succeeded."""
        self.write(other, number)
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            for each in self.completed():
                return bool(each.status == e.IBV_WC_SUCCESS)
            time.sleep(0.0002)
        raise TimeoutError(f"write {number}: no completion in {limit_s:.0f} s")


def connected(one: str = "a0", other: str = "b0", flow_label: int = 0, **more: int) -> tuple[End, End]:
    """Two ends, ready to write."""
    ends = End(one), End(other)
    ends[0].connect(ends[1], flow_label, **more)
    ends[1].connect(ends[0])
    return ends
