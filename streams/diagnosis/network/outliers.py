"""Finds NIC pairs that move data slower than comparable pairs, and the NIC that such pairs share."""

from __future__ import annotations

from statistics import median
from typing import Final

from streams.diagnosis.case import Case, Outlier
from streams.diagnosis.explained import is_only_sent
from streams.diagnosis.network.traffic import NicPair

MIN_LIKE: Final = 2
"""Number of other pairs that are needed for a comparison."""
CONCENTRATED: Final = 0.7
"""Share of the slow pairs, and of an end's pairs, from which on that end counts as their common cause."""
ROLES: Final = ("sender", "receiver")
"""Roles of the NICs of a pair, in their order."""
QUIET_US: Final = 10.0
"""Queueing delay up to which a path counts as normal, us."""


def find_outliers(case: Case) -> list[Outlier]:
    """Return the pairs that are slower than comparable pairs or their baseline, the slowest first."""
    outliers: list[Outlier] = []
    sources = ("queue pair", "transfer", *(["operation"] * case.has_clean_baseline(case.begin_ns)))
    for source in sources:
        pairs = [pair for pair in case.traffic.measured if pair.source == source]
        outliers += _against_others(case, pairs)
    pair_ids = {id(outlier.pair) for outlier in outliers}
    outliers += [outlier for outlier in _against_before(case) if id(outlier.pair) not in pair_ids]
    outliers = [outlier for outlier in outliers if not is_only_sent(case, outlier)]
    return sorted(outliers, key=lambda outlier: (-outlier.times, outlier.pair.name))


def _against_others(case: Case, pairs: list[NicPair]) -> list[Outlier]:
    rules = case.rules
    compared = _like_sizes(pairs)
    if len(compared) <= MIN_LIKE:
        return []
    ratios = [value / max(like, 1.0) for _, value, like in compared]
    spread = max(1.4826 * median(abs(ratio - 1.0) for ratio in ratios), 0.05)
    return [
        Outlier(pair, value, like, "others")
        for pair, value, like in compared
        if value >= rules.flow_times * like
        and value - like >= rules.flow_excess_us * 1e3
        and value - like >= rules.flow_spreads * max(spread * like, 1.0)
    ]


def _like_sizes(pairs: list[NicPair]) -> list[tuple[NicPair, float, float]]:
    """Return each pair with its mean time, and the median pair's time for messages of the same sizes, ns.

    Ring neighbours exchange large chunks of a collective, other pairs only small messages.
    """
    ns_by_size = _median_by_size(pairs)
    times: list[tuple[NicPair, float, float]] = []
    for pair in pairs:
        comparable = [
            (size, count, total_ns) for size, (count, total_ns) in pair.sizes.items() if size in ns_by_size
        ]
        number = sum(count for _, count, _ in comparable)
        if number:
            expected = sum(count * ns_by_size[size] for size, count, _ in comparable)
            times.append((pair, sum(total_ns for *_, total_ns in comparable) / number, expected / number))
    return times


def _median_by_size(pairs: list[NicPair]) -> dict[int, float]:
    """Return, by message size, the median time of the pairs, ns; sizes of too few pairs are left out."""
    means: dict[int, list[float]] = {}
    for pair in pairs:
        for size, (count, total_ns) in pair.sizes.items():
            means.setdefault(size, []).append(total_ns / count)
    medians = {size: median(values) for size, values in means.items() if len(values) > MIN_LIKE}
    return {size: ns for size, ns in medians.items() if ns > 0}


def _against_before(case: Case) -> list[Outlier]:
    """Return the pairs that are slower than their baseline while most other pairs are not."""
    slower: list[Outlier] = []
    with_baseline = 0
    for pair in case.traffic.measured:
        baseline = pair.baseline_ns(case.job.baselines)
        if baseline is None or pair.data_ns is None:
            continue
        with_baseline += 1
        far = pair.data_ns - baseline >= case.rules.flow_excess_us * 1e3
        if far and pair.data_ns >= case.rules.flow_times * baseline:
            slower.append(Outlier(pair, pair.data_ns, baseline, "before"))
    return slower if len(slower) <= max(1, with_baseline // 2) else []


def common_end(case: Case, outliers: list[Outlier]) -> tuple[str, str, float]:
    """Return the NIC that the slow pairs share, its role, and the share of its pairs that are slow.

    The role is `both`, `sender` or `receiver`. It is empty if the pairs share no NIC, or if there is only one
    pair.
    """
    if len(outliers) < 2:
        return "", "", 0.0
    slow = {outlier.pair.key for outlier in outliers}
    best = ("", "", 0.0)
    for nic in sorted({name for pair in slow for name in pair}):
        touched = sum(nic in pair for pair in slow) / len(slow)
        role = _role(case.traffic.measured, slow, nic) if touched >= CONCENTRATED else ""
        if role and (touched, role == "both") > (best[2], best[1] == "both"):
            best = (nic, role, touched)
    return best


def _role(measured: list[NicPair], slow: set[tuple[str, str]], nic: str) -> str:
    """Return the role (`both`, `sender`, `receiver`) in which nearly all pairs of a NIC are slow, or ""."""
    counts = {role: sum(key[at] == nic for key in slow) for at, role in enumerate(ROLES)}
    totals = {role: sum(pair.key[at] == nic for pair in measured) for at, role in enumerate(ROLES)}
    shares = {role: count / max(1, totals[role]) for role, count in counts.items()}
    if min(counts.values()) > 0 and min(shares.values()) >= CONCENTRATED:
        return "both"
    role = max(shares, key=lambda name: (counts[name], name))
    return role if shares[role] >= CONCENTRATED and counts[role] >= 2 else ""


def network_is_normal(case: Case, pairs: list[NicPair]) -> bool | None:
    """Return whether probes between the pairs meet neither queue nor loss; None without probes."""
    probes = [pair_probes for pair in pairs if (pair_probes := case.probes(pair)) is not None]
    timed = [probe for probe in probes if probe.p50_ns is not None and probe.min_ns is not None]
    if not timed:
        return None
    quiet = [
        (probe.p50_ns or 0.0) - (probe.min_ns or 0.0) <= QUIET_US * 1e3 and probe.lost_share < 0.005
        for probe in timed
    ]
    return sum(quiet) >= CONCENTRATED * len(quiet)
