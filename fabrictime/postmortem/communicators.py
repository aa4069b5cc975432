"""Finds the transport and NICs that each communicator uses, from NCCL's logs of connections. Does no I/O.

The logs state connections, not bytes: a connection that NCCL sets up may carry no data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from fabrictime.postmortem.base import Explanation, host_names, names_text
from fabrictime.postmortem.observations import LOCAL, Channel, Observations

MAX_SHOWN: Final = 256
"""Largest number of rows in the report, and of NICs in a row."""


class TransportUse(NamedTuple):
    """A transport of a communicator, as NCCL names it: IB, Socket, P2P, SHM, NVLS, COLLNET or a plugin's.

    `communicator` is empty if unknown; `nics` are HOST/DEVICE.
    """

    communicator: str
    transport: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    nics: tuple[str, ...]
    connections: int
    gpudirect: int
    """Number of connections with GPUDirect RDMA."""


def transport_uses(out: Observations) -> list[TransportUse]:
    """Return the transports of all communicators; the communicator with most ranks is first."""
    lines: dict[tuple[str, str], dict[Channel, int]] = defaultdict(dict)
    for channels in (out.channels, out.other_channels):
        for channel, number in channels.items():
            lines[channel.communicator, channel.transport][channel] = number
    uses = [_use(*key, channels, out) for key, channels in lines.items()]
    sizes: dict[str, int] = defaultdict(int)
    for use in uses:
        sizes[use.communicator] = max(sizes[use.communicator], len(use.ranks))
    return sorted(uses, key=lambda use: (-sizes[use.communicator], use.communicator, use.transport))


def _use(communicator: str, transport: str, channels: dict[Channel, int], out: Observations) -> TransportUse:
    nics = {device_name(channel, out) for channel in channels if channel.device >= 0}
    return TransportUse(
        communicator,
        transport,
        tuple(sorted({channel.rank for channel in channels})),
        tuple(sorted({channel.host for channel in channels})),
        tuple(sorted(nics)),
        sum(channels.values()),
        sum(number for channel, number in channels.items() if channel.is_gdr),
    )


def device_name(channel: Channel, out: Observations) -> str:
    """Return the NIC of a channel as HOST/DEVICE; for sockets, an index, as logs name no interface."""
    devices = {} if is_socket(channel.transport) else out.network_of(channel.host).rdma_devices
    return f"{channel.host}/{devices.get(channel.device, f'device {channel.device}')}"


def is_socket(transport: str) -> bool:
    """Return whether a transport is NCCL's built-in socket transport over TCP."""
    return transport.startswith("Socket")


def mixed_networks(out: Observations) -> Iterator[Explanation]:
    """Yield the communicators that use sockets on hosts where other communicators use RDMA."""
    uses = [use for use in transport_uses(out) if use.communicator and use.transport not in LOCAL]
    on_rdma = {host for use in uses if not is_socket(use.transport) for host in use.hosts}
    for use in uses:
        hosts = sorted(on_rdma.intersection(use.hosts))
        if is_socket(use.transport) and hosts:
            text = (
                f"communicator {use.communicator} uses sockets on {names_text(hosts)}, "
                f"where other communicators use RDMA"
            )
            yield Explanation("FALLBACK", host_names(hosts), 0.7, text)


def through_memory(out: Observations) -> Iterator[Explanation]:
    """Yield the hosts whose GPUs exchange data through host memory, while on most hosts they do not."""
    direct = {channel.host for channel in out.other_channels if channel.transport == "P2P"}
    staged = {channel.host for channel in out.other_channels if channel.transport == "SHM"} - direct
    if staged and len(direct) > len(staged):
        text = (
            f"GPUs of {names_text(sorted(staged))} exchange data through host memory (SHM), "
            f"those of {len(direct)} other hosts directly (P2P: NVLink or PCIe)"
        )
        missing = ("`nvidia-smi topo -p2p r` on both, and the log's lines about NCCL_P2P",)
        yield Explanation("FALLBACK", host_names(sorted(staged)), 0.75, text, (), missing)


def as_json(out: Observations) -> list[dict[str, Any]]:
    """Return the transports as `explain --folder DIR --json` prints them."""
    return [
        {
            "communicator": use.communicator,
            "transport": use.transport,
            "ranks": len(use.ranks),
            "hosts": len(use.hosts),
            "nics": list(use.nics[:MAX_SHOWN]),
            "connections": use.connections,
            "gpudirect": use.gpudirect,
        }
        for use in transport_uses(out)[:MAX_SHOWN]
    ]


def lines(out: Observations, limit: int = 6) -> Iterator[str]:
    """Yield a line about the transports of each of the largest communicators."""
    uses = transport_uses(out)
    for name in list(dict.fromkeys(use.communicator for use in uses))[:limit]:
        parts = [_part(use) for use in uses if use.communicator == name]
        yield f"transport of {f'communicator {name}' if name else 'all communicators'}: {'; '.join(parts)}"


def _part(use: TransportUse) -> str:
    text = f"{use.transport} {len(use.ranks)} ranks"
    text += f" over {len(use.nics)} NICs" if use.nics and not is_socket(use.transport) else ""
    return f"{text}, GPUDirect {use.gpudirect} of {use.connections}" if use.gpudirect else text
