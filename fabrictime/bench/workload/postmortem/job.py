"""Describes a small training job: hosts with separate clocks, NICs, process groups, and a step's program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

ELEMENT_BYTES: Final = {"Float": 4, "BFloat16": 2}
NCCL_VERSIONS: Final = ("2.18.5", "2.21.5", "2.23.4", "2.26.2", "2.27.3", "2.28.9", "2.30.7")
HOST_NAMES: Final = ("node{:02d}", "gpu-{}", "dgx-a{:03d}", "ip-10-0-3-{}", "r7n{:02d}")
NIC_NUMBERS: Final = (0, 3, 4, 5, 6, 9, 10, 11)
"""Numbers of the eight compute NICs of a common host; the numbers between belong to storage."""


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """A host: `offset_s` is its clock minus true time; its n-th GPU uses the n-th NIC."""

    number: int
    name: str
    address: str
    ranks: tuple[int, ...]
    nics: tuple[str, ...]
    offset_s: float
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A process group. PyTorch names it by `number`, as text."""

    number: int
    description: str
    ranks: tuple[int, ...]
    hosts: int
    """Number of hosts that its ranks are on."""


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """A part of a step in which `ranks` compute for a share of the step's compute time."""

    ranks: tuple[int, ...]
    share: float


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A collective of a group, or a transfer from the first to the second of two `ranks` (`kind` send)."""

    group: Group
    kind: str
    elements: int
    dtype: str
    ranks: tuple[int, ...]


Item = Compute | Call


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A job with `tensor` x `data` x `stages` ranks, in Megatron's order: tensor first, stages last."""

    number: int
    hosts: tuple[Host, ...]
    tensor: int
    data: int
    stages: int
    world: Group
    checkpoint: Group
    tensors: tuple[Group, ...]
    datas: tuple[Group, ...]
    pipelines: tuple[Group, ...]
    step: tuple[Item, ...]
    compute_s: float
    """Time of a step's compute on one rank without pauses."""
    nic_bytes_per_s: float
    first_step: int
    began_s: float
    nccl: str

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.world.ranks)

    @property
    def groups(self) -> tuple[Group, ...]:
        """All process groups, in order of their numbers."""
        return (self.world, *self.tensors, *self.datas, *self.pipelines, self.checkpoint)

    def host(self, rank: int) -> Host:
        """Return the host of a rank."""
        return self.hosts[rank // len(self.hosts[0].ranks)]

    def local(self, rank: int) -> int:
        """Return the number of a rank's GPU within its host."""
        return rank % len(self.hosts[0].ranks)

    def pid(self, rank: int) -> int:
        """Return the process id of a rank."""
        return self.host(rank).pids[self.local(rank)]

    def nic(self, rank: int) -> str:
        """Return the NIC of a rank as the product names it: host/device."""
        return f"{self.host(rank).name}/{self.host(rank).nics[self.local(rank)]}"

    def groups_of(self, rank: int) -> list[Group]:
        """Return the groups that contain a rank; the list index is PyTorch's id of the group in a process."""
        return [group for group in self.groups if rank in group.ranks]


def draw_job(rng: Random) -> Job:
    """Draw a job of 8 to 64 ranks."""
    per_host = rng.choice((4, 8, 8))
    count = rng.choice([hosts for hosts in (2, 2, 3, 4, 4, 6, 8) if hosts * per_host >= 8])
    size = count * per_host
    hosts = _hosts(rng, count, per_host)
    tensor, stages = _layout(rng, per_host, count)
    data = size // tensor // stages
    made: list[Group] = []

    def group(description: str, ranks: Sequence[int]) -> Group:
        made.append(Group(len(made), description, tuple(ranks), len({rank // per_host for rank in ranks})))
        return made[-1]

    names = rng.choice(
        (
            ("TENSOR_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP"),
            ("mesh_tp", "mesh_dp", "mesh_pp"),
        )
    )
    world = group("default_pg", range(size))
    blocks = range(0, size, tensor)
    tensors = [group(names[0], range(first, first + tensor)) for first in blocks] if tensor > 1 else []
    stage = tensor * data
    datas = [
        group(names[1], range(first * stage + column, (first + 1) * stage, tensor))
        for first in range(stages)
        for column in range(tensor)
    ]
    pipelines = [group(names[2], range(column, size, stage)) for column in range(stage)] if stages > 1 else []
    checkpoint = group("checkpoint", range(size))
    step = tuple(_step(rng, world, tensors, datas, pipelines, stage))
    return Job(
        rng.randrange(10_000, 999_999),
        hosts,
        tensor,
        data,
        stages,
        world,
        checkpoint,
        tuple(tensors),
        tuple(datas),
        tuple(pipelines),
        step,
        rng.uniform(0.15, 0.6),
        rng.choice((25e9, 50e9)),
        rng.choice((0, 0, rng.randrange(20, 4_000), rng.randrange(20, 4_000), rng.randrange(20, 4_000))),
        1_760_000_000 + rng.uniform(0, 3e7),
        rng.choice(NCCL_VERSIONS),
    )


def _hosts(rng: Random, count: int, per_host: int) -> tuple[Host, ...]:
    pattern = rng.choice(HOST_NAMES)
    numbers = sorted(rng.sample(range(1, 99), count))
    nics = [f"mlx5_{number}" for number in (NIC_NUMBERS if rng.random() < 0.4 else range(8))][:per_host]
    hosts = []
    for number, label in enumerate(numbers):
        pid = rng.randrange(2_000, 900_000)
        pids = tuple(pid + 1 + local for local in range(per_host))
        ranks = tuple(range(number * per_host, (number + 1) * per_host))
        hosts.append(
            Host(
                number,
                pattern.format(label),
                f"10.0.3.{label}",
                ranks,
                tuple(nics),
                rng.uniform(-0.2, 0.2),
                pids,
            )
        )
    return tuple(hosts)


def _layout(rng: Random, per_host: int, count: int) -> tuple[int, int]:
    """Return the sizes of the tensor groups, which lie within a host, and of the pipelines."""
    tensor = rng.choice([width for width in (1, 2, 4, 8) if width <= per_host])
    stages = 2 if count % 2 == 0 and count > 2 and rng.random() < 0.35 else 1
    return tensor, stages


def _step(
    rng: Random, world: Group, tensors: list[Group], datas: list[Group], pipelines: list[Group], stage: int
) -> Iterator[Item]:
    """Yield a step's program in one global order: layers, gradients, and a small collective of all ranks."""
    layers = rng.randrange(4, 9)
    activations = 2 ** rng.randrange(21, 25)
    if pipelines:
        yield from _microbatches(tensors, pipelines, stage, activations)
    else:
        for _ in range(layers):
            yield from _layer(world.ranks, tensors, 1 / layers, activations)
    gradients = 2 ** rng.randrange(26, 28)
    for kind in rng.choice((("all_reduce",), ("_reduce_scatter_base", "_all_gather_base"))):
        for group in datas:
            yield Call(group, kind, gradients, "BFloat16", group.ranks)
        yield Compute(world.ranks, 0.02)
    yield Call(world, "all_reduce", 4096, "Float", world.ranks)


def _layer(ranks: tuple[int, ...], tensors: list[Group], share: float, elements: int) -> Iterator[Item]:
    yield Compute(ranks, share)
    for group in tensors:
        if group.ranks[0] in ranks:
            yield Call(group, "all_reduce", elements, "BFloat16", group.ranks)


def _microbatches(
    tensors: list[Group], pipelines: list[Group], stage: int, elements: int, batches: int = 4
) -> Iterator[Item]:
    """Yield all forward passes, then all backward passes, of the batches through two stages."""
    halves = tuple(range(stage)), tuple(range(stage, 2 * stage))
    for order in ((0, 1), (1, 0)):
        for _ in range(batches):
            for position, half in enumerate(order):
                yield from _layer(halves[half], tensors, 0.5 / batches, elements)
                if position == 0:
                    for group in pipelines:
                        pair = group.ranks[order[0]], group.ranks[order[1]]
                        yield Call(group, "send", elements, "BFloat16", pair)
