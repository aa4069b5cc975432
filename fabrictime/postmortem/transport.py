"""Finds hosts that used sockets, fewer NICs or no GPUDirect, and NICs with errors, from NCCL's logs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from fabrictime.postmortem.base import Explanation, culprits_of, host_names, names_text, ranks_text
from fabrictime.postmortem.communicators import device_name, is_socket, mixed_networks, through_memory
from fabrictime.postmortem.observations import Channel, NetError, Observations


def fallbacks(out: Observations) -> Iterator[Explanation]:
    """Yield an explanation for hosts whose transport is worse than on others, or than their NICs allow."""
    yield from _sockets(out)
    yield from mixed_networks(out)
    yield from _fewer_nics(out)
    yield from _no_gdr(out)
    yield from through_memory(out)


def nics_of_ranks(out: Observations) -> dict[int, set[str]]:
    """Return, by rank, the NICs that its channels used, as HOST/DEVICE."""
    nics: dict[int, set[str]] = defaultdict(set)
    for channel in out.channels:
        nics[channel.rank].add(device_name(channel, out))
    return nics


def _transports(out: Observations) -> dict[str, str]:
    """Return, by host, the transport to other hosts: that of its channels, else the network NCCL chose."""
    lines: dict[str, Counter[str]] = defaultdict(Counter)
    for channel, number in out.channels.items():
        lines[channel.host][channel.transport] += number
    transports = {host: counts.most_common(1)[0][0] for host, counts in lines.items()}
    if len(out.networks) > 1:
        for host, network in out.networks.items():
            if network.network:
                transports.setdefault(host, network.network)
    return transports


def _sockets(out: Observations) -> Iterator[Explanation]:
    transports = _transports(out)
    on_sockets = sorted(host for host, transport in transports.items() if is_socket(transport))
    if not on_sockets:
        return
    others = sorted({transports[host] for host in transports.keys() - set(on_sockets)})
    stated = {host: out.network_of(host).reason for host in on_sockets}
    reasons = dict(filter(itemgetter(1), stated.items()))
    text = f"NCCL used sockets instead of RDMA on {names_text(on_sockets)}"
    text += f", others {names_text(others)}" if others else ""
    text += f": {next(iter(reasons.values()))}" if reasons else ""
    confidence = 0.92 if others else 0.8 if reasons or _listed(out).keys() & on_sockets else 0.55
    culprits = sorted(reasons) if others and reasons else on_sockets
    evidence = tuple(": ".join(item) for item in reasons.items())
    yield Explanation("FALLBACK", host_names(culprits), confidence, text, evidence[:6])


def _listed(out: Observations) -> dict[str, set[str]]:
    return {
        host: set(network.rdma_devices.values())
        for host, network in out.networks.items()
        if network.rdma_devices
    }


def _used(out: Observations) -> dict[str, set[str]]:
    """Return, by host, the devices of its channels other than sockets, for hosts with the largest number of
    ranks: a rank without a log does not make its NIC unused.
    """
    used: dict[str, set[str]] = defaultdict(set)
    ranks: dict[str, set[int]] = defaultdict(set)
    for channel in out.channels:
        if not is_socket(channel.transport):
            used[channel.host].add(device_name(channel, out).partition("/")[2])
            ranks[channel.host].add(channel.rank)
    largest = max(map(len, ranks.values()), default=0)
    return {host: devices for host, devices in used.items() if len(ranks[host]) == largest}


def _fewer_nics(out: Observations) -> Iterator[Explanation]:
    is_complete = len(out.ranks) >= out.expected  # the NIC of a rank without a log may be in use
    for devices, verb in ((_listed(out), "found"), (_used(out) if is_complete else {}, "used")):
        explanation = _below_peers(devices, verb)
        if explanation is not None:
            yield explanation
            return
    listed, used = _listed(out), _used(out)
    few = sorted(
        host
        for host, names in used.items()
        if 2 * len(names) <= len(listed.get(host, ())) and _is_wide(host, out)
    )
    if few:
        unused = sorted(f"nic {host}/{name}" for host in few for name in listed[host] - used[host])
        text = f"{names_text(few)} used {len(used[few[0]])} of {len(listed[few[0]])} NICs"
        culprits = (*host_names(few), *unused)
        yield Explanation("FALLBACK", culprits, 0.6, text)


def _is_wide(host: str, out: Observations) -> bool:
    """Return whether a host has as many ranks as NICs, so that each rank can use its own."""
    ranks = {channel.rank for channel in out.channels if channel.host == host}
    return len(ranks) >= len(out.network_of(host).rdma_devices)


def _below_peers(devices: Mapping[str, set[str]], verb: str) -> Explanation | None:
    """Return an explanation for hosts with fewer devices than is typical of the others."""
    if len(devices) < 2:
        return None
    typical, hosts = Counter(map(len, devices.values())).most_common(1)[0]
    typical = typical if hosts > 1 else max(map(len, devices.values()))
    few = sorted(host for host, names in devices.items() if len(names) < typical)
    if not few or len(few) > len(devices) / 2:
        return None
    absent = _absent_devices(few, devices)
    text = f"NCCL {verb} {len(devices[few[0]])} NICs on {names_text(few)}, {typical} on the other hosts"
    if absent:
        text += f"; without {names_text(absent)}"
    culprits = (*(f"nic {name}" for name in absent), *host_names(few))
    return Explanation("FALLBACK", culprits, 0.85 if verb == "found" else 0.75, text)


def _absent_devices(few: list[str], devices: Mapping[str, set[str]]) -> list[str]:
    """Return the devices, as HOST/DEVICE, that most other hosts have and the hosts in `few` lack."""
    others = [names for host, names in devices.items() if host not in few]
    common = Counter(name for names in others for name in names)
    typical = {name for name, number in common.items() if 2 * number > len(others)}
    return sorted(f"{host}/{name}" for host in few for name in typical - devices[host])


def _no_gdr(out: Observations) -> Iterator[Explanation]:
    """Yield explanations for hosts or NICs without GPUDirect RDMA while others use it."""
    over_rdma = [channel for channel in out.channels if not is_socket(channel.transport)]
    with_gdr = {channel.host for channel in over_rdma if channel.is_gdr}
    without = [channel for channel in over_rdma if not channel.is_gdr]
    bad = sorted({channel.host for channel in without} - with_gdr) or _disabled(with_gdr, out)
    if bad and (with_gdr or not over_rdma):
        text = f"NCCL used no GPUDirect RDMA on {names_text(bad)}, others do"
        yield Explanation("FALLBACK", host_names(bad), 0.85, text)
        return
    yield from _partly_without_gdr(without, with_gdr, out)


def _partly_without_gdr(
    without: Sequence[Channel], with_gdr: set[str], out: Observations
) -> Iterator[Explanation]:
    """Yield an explanation for NICs without GPUDirect RDMA on hosts that use it over other NICs."""
    nics = {device_name(channel, out): channel.host for channel in without}
    if nics and with_gdr and len(nics) <= len(with_gdr):
        text = f"NCCL used no GPUDirect RDMA over {names_text(sorted(nics))}, over others it did"
        culprits = (*(f"nic {name}" for name in sorted(nics)), *host_names(dict.fromkeys(nics.values())))
        yield Explanation("FALLBACK", culprits, 0.75, text)


def _disabled(with_gdr: set[str], out: Observations) -> list[str]:
    """Return the hosts that log a NIC without GPUDirect RDMA; empty if all hosts do."""
    disabled = {host for host, network in out.networks.items() if network.no_gdr_devices}
    return [] if len(disabled) == len(out.networks) else sorted(disabled - with_gdr)


def link_errors(out: Observations) -> Iterator[Explanation]:
    """Yield an explanation for the NIC or host that is common to the NICs' errors."""
    errors = list(dict.fromkeys(out.net_errors))
    if not errors:
        return
    by_address = out.hosts_by_address()
    silent = _silent_peer(errors, by_address)
    if silent:
        text = (
            f"the connections of {names_text(sorted({error.host for error in errors}))} to {silent} failed, "
            f"which logged no error: its process ended, or it is cut off ({_text(errors[0], by_address)})"
        )
        missing = (f"the end of the logs of {silent} would say why its process ended",)
        yield Explanation("DEAD_RANK", host_names([silent]), 0.65, text, (), missing)
        return
    local = [error for error in errors if error.is_local]
    hosts = [local[0].host] if local else _common_ends(errors, by_address)
    own = [error for error in local or errors if error.host == hosts[0]] or errors
    devices = {f"nic {error.host}/{error.device}" for error in own if error.device and error.host == hosts[0]}
    text = f"the network failed at {names_text(hosts)}: {_text(own[0], by_address)}"
    text += f"; {len(out.net_errors)} such lines"
    confidence = 0.8 if local else 0.7 if len(hosts) == 1 else 0.5
    missing = ("counters and events of these NICs and of their switch ports at that time",)
    evidence = tuple(f"{error.host}: {_text(error, by_address)}" for error in errors[:6])
    culprits = (*sorted(devices)[:2], *host_names(hosts))
    yield Explanation("HANG", culprits, confidence, text, evidence, missing)


def _silent_peer(errors: Sequence[NetError], by_address: Mapping[str, str]) -> str:
    """Return the host at the other end of all errors, if it logged none; else empty.

    Both ends of a failing link log errors, but a process that ended logs none.
    """
    peers = {by_address.get(error.peer, "") for error in errors}
    peer = peers.pop() if len(peers) == 1 else ""
    is_silent = not any(error.is_local or error.host == peer for error in errors)
    return peer if is_silent else ""


def _common_ends(errors: Sequence[NetError], by_address: Mapping[str, str]) -> list[str]:
    """Return the hosts at the ends of most errors, as reporter or as peer."""
    ends: Counter[str] = Counter()
    for error in errors:
        ends.update({error.host, by_address.get(error.peer, "")} - {""})
    return sorted(host for host, number in ends.items() if number == max(ends.values()))


def _text(error: NetError, by_address: Mapping[str, str]) -> str:
    peer = by_address.get(error.peer)
    return f"{error.device + ': ' if error.device else ''}{error.text}{f' ({peer})' if peer else ''}"


def incomplete_starts(out: Observations) -> Iterator[Explanation]:
    """Yield an explanation for the ranks that did not join a communicator while others wait in its start."""
    waiting = out.init_started - out.init_completed
    absent = set(range(min(out.expected, 1_000_000))) - out.init_started
    if not waiting or len(waiting) < len(out.init_completed):
        return
    if absent and len(absent) <= len(out.init_started):
        text = (
            f"{ranks_text(absent)} did not join the communicator, in whose start {ranks_text(waiting)} wait"
        )
        yield Explanation("HANG", culprits_of(absent, out), 0.6, text)
        return
    yield Explanation(
        "HANG", (), 0.45, f"{ranks_text(waiting)} did not complete the start of the communicator"
    )
