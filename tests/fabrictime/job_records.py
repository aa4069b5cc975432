"""Synthetic diagnoses and profiles of a ring job on the NICs of a fabric."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from schemas import codec
from tests.fabrictime.fabric_records import FabricRecords
from tests.records import make, make_part

S = 1_000_000_000
INTERVAL_NS = 5 * S


class JobRecords:
    """Records of one job: rank r uses NIC r % NICs and sends to the next NIC of the ring."""

    def __init__(self, fabric: FabricRecords, job: str = "llama", ranks: int = 8, seed: int = 1) -> None:
        self.fabric, self.job, self.ranks = fabric, job, ranks
        self.rng = random.Random(seed)

    def nic(self, rank: int) -> str:
        return self.fabric.nics[rank % len(self.fabric.nics)]

    def pair(self, rank: int) -> tuple[str, str]:
        """The NICs of a rank and of the next one."""
        return self.nic(rank), self.nic(rank + 1)

    def slow_link(self, rank: int) -> str:
        """The link to a spine on the route of a rank's flow, else its first link."""
        hops = self.fabric.hops(*self.pair(rank), 1)
        return hops[len(hops) // 2 - (len(hops) > 2)]

    def diagnosis(self, number: int, end_ns: int, slow: int | None = None, **fields: Any) -> Any:
        """A diagnosis of the interval that ends at `end_ns`; the flow of rank `slow` is slow."""
        rng, good_ns = self.rng, 640_000_000
        iteration_ns = round(good_ns * rng.uniform(0.98, 1.04) * (1 if slow is None else 1.5))
        given: dict[str, Any] = {
            "job": self.job,
            "tenant": "research",
            "shard": "fabric",
            "number": number,
            "begin_ns": end_ns - INTERVAL_NS,
            "end_ns": end_ns,
            "since_ns": end_ns - INTERVAL_NS,
            "verdict": "HEALTHY",
            "confidence": 0.95,
            "text": "nothing is wrong with the network, and no rank is late",
            "ranks_seen": self.ranks,
            "ranks_total": self.ranks,
            "hosts": len({self.nic(rank).partition("/")[0] for rank in range(self.ranks)}),
            "operations": 1_200,
            "bytes": 64 * 10**9,
            "iteration_ns": iteration_ns,
            "expected_iteration_ns": good_ns,
            "bus_bps": 360e9 * good_ns / iteration_ns,
            "expected_bus_bps": 360e9,
            "bound_ns": 900.0,
            "time_splits": [self.split(rank, slow) for rank in range(self.ranks)],
            "flows": self.flows(slow),
        }
        if slow is not None:
            given.update(self._slow_flow(slow))
        return make("Diagnosis", **{**given, **fields})

    def split(self, rank: int, slow: int | None) -> Any:
        rng = self.rng
        network = round(rng.uniform(0.9, 1.1) * 0.9 * S * (1.9 if rank == slow else 1))
        peer = round(rng.uniform(0.9, 1.1) * (0.9 if slow is not None and rank != slow else 0.12) * S)
        launch, gpu, flush = (round(rng.uniform(0.5, 1.5) * ms * 10**6) for ms in (60, 110, 25))
        return make_part(
            "Diagnosis",
            "RankTime",
            rank=rank,
            host=self.nic(rank).partition("/")[0],
            nic=self.nic(rank),
            compute_ns=max(0, INTERVAL_NS - network - peer - launch - gpu - flush),
            launch_ns=launch,
            gpu_late_ns=gpu,
            peer_late_ns=peer,
            network_late_ns=network,
            flush_ns=flush,
            last_arrivals=rng.randint(0, 40),
        )

    def flows(self, slow: int | None) -> list[Any]:
        found = {}
        for rank in range(min(self.ranks, len(self.fabric.nics))):
            nic, peer = self.pair(rank)
            if nic == peer:
                continue
            found[nic, peer] = make_part(
                "Diagnosis",
                "JobFlow",
                nic=nic,
                peer=peer,
                paths=4,
                rate_bps=self.rng.uniform(0.9, 1.1) * (4e9 if rank == slow else 9e9),
                delay_ns=round(self.rng.uniform(3.5, 4.5) * (23_000 if rank == slow else 1_000)),
                data_ns=round(self.rng.uniform(0.9, 1.1) * (410_000 if rank == slow else 52_000)),
                links=self.fabric.hops(nic, peer, 1),
            )
        return list(found.values())

    def _slow_flow(self, slow: int) -> dict[str, Any]:
        nic, peer = self.pair(slow)
        link = self.slow_link(slow)
        evidence = make_part(
            "Diagnosis",
            "DiagnosisEvidence",
            topic="fabric.delays",
            subject=nic,
            quantity="delay_p50_ns",
            number=94_000.0,
            expected=4_000.0,
            text=f"probes from {nic} to {peer} take 94 µs, others 4 µs",
        )
        alternative = make_part(
            "Diagnosis",
            "Alternative",
            verdict="SLOW_SENDER",
            confidence=0.2,
            subject=nic.partition("/")[0],
            text=f"host {nic.partition('/')[0]} may send late",
        )
        return {
            "verdict": "SLOW_FLOW",
            "blames_network": True,
            "subject": link,
            "subjects": [link],
            "links": [link],
            "nics": [nic],
            "ranks": [slow],
            "jobs": ["batch-b"],
            "text": f"{nic} to {peer} takes 94 µs, others 4 µs: {link} is contended by job batch-b",
            "remedy": "move the flow to another path, or pace batch-b",
            "loss_share": 0.31,
            "evidence": [evidence],
            "alternatives": [alternative],
            "missing": ["no CE marks: probes do not carry ECN"],
        }

    def batch(
        self,
        rank: int,
        number: int,
        end_ns: int,
        pairs: Sequence[int] = (1, 2),
        summaries: bool = False,
        **fields: Any,
    ) -> Any:
        """A CollectiveBatch of a rank's process: queue pairs to the next rank; QP 2 is slow."""
        nic = self.nic(rank)
        made = [
            make_part(
                "CollectiveBatch",
                "QueuePairDelay",
                nic=nic,
                queue_pair=100 * rank + k,
                peer=(rank + 1) % self.ranks,
                count=5_000,
                bytes=2 * 10**9,
                min_ns=9_000,
                mean_ns=40_000 if k < 2 else 400_000,
                p99_ns=90_000 if k < 2 else 1_900_000,
                max_ns=200_000 if k < 2 else 4_000_000,
                posted=k,
            )
            for k in pairs
        ]
        counter = make_part("CollectiveBatch", "NicCounter", nic=nic, cnp_received=1_204, retransmits=0)
        return make(
            "CollectiveBatch",
            **{
                "job": self.job,
                "host": nic.partition("/")[0],
                "boot": "boot",
                "process": f"{1000 + rank}-7",
                "batch": number,
                "shard": "fabric",
                "source": "NCCL",
                "clock": "SYNCED",
                "begin_ns": end_ns - S,
                "end_ns": end_ns,
                "queue_pairs": made,
                "counters": [counter],
                **(self._operations(rank) if summaries else {}),
                **fields,
            },
        )

    def _operations(self, rank: int) -> dict[str, Any]:
        """A communicator of all ranks, and the summary of its ten all-reduces of 1 GB."""
        communicator = make_part("CollectiveBatch", "Communicator", id="c1", rank=rank, ranks=self.ranks)
        summary = make_part(
            "CollectiveBatch",
            "CollectiveSummary",
            function="ALL_REDUCE",
            algorithm="RING",
            protocol="SIMPLE",
            bytes_from=2**29,
            last_seq=9,
            count=10,
            bytes=10**10,
            busy_ns=400_000_000,
            min_ns=38_000_000,
            p50_ns=40_000_000,
            max_ns=45_000_000,
            network_late_ns=300_000_000,
            peer_late_ns=50_000_000,
            bus_bps=3.5e11,
        )
        return {"communicators": [communicator], "summaries": [summary]}


def head_of(record: Any) -> dict[str, Any]:
    """Return the head of a diagnosis as the consumer decodes it."""
    from fabrictime.state.job_state import HEAD_END

    return codec.decode_head(codec.encode("Diagnosis", record), "Diagnosis", HEAD_END)
