"""Path status: what a prober reports to its host's actuator, how often, and that the report is complete."""

from __future__ import annotations

import random

import pytest

from actuators.flows.local_repair import DeadLinks
from native.core.probe import PathEvidence
from producers.probe.path_status import PathStatusReporter, PathStatusTracker
from schemas import codec
from schemas.ipc import receive_at, received
from tests.path_status import MS, path, status_report


def news(peer="h2/eth1", port=9320, lost=0, answered=0, loss_streak=0, age_ms=0.0):
    age_ns = round(age_ms * MS)
    return PathEvidence(
        peer, port, lost, answered, 0, 0, loss_streak, age_ns, age_ns, age_ns, age_ns, 10 * MS
    )


def test_a_prober_reports_losses_soon_with_the_last_answer_of_their_links():
    book = PathStatusTracker("h1/eth1", 5, lambda peer, port: ["up", f"s{port - 9319}"])
    calm = [news(answered=3), news(port=9321, answered=2), news(port=9322, answered=2)]
    assert book.update(calm, 0)["paths"] == [], "nothing gets lost"
    assert book.update([news(answered=1)], 10 * MS) is None, "all is well"
    lost = book.update([news(lost=1, loss_streak=1, age_ms=4), news(port=9321, answered=1)], 20 * MS)
    row, other = lost["paths"]
    assert (row["path"], row["loss_streak"], row["answered_age_ns"]) == (9320, 1, 10 * MS)
    assert (row["first_lost_age_ns"], row["links"]) == (4 * MS, ["up", "s1"])
    assert (other["path"], other["answered_age_ns"]) == (9321, 0), "what was answered last across 'up'"
    book.links_of = lambda peer, port: ["up"]  # traced again, to the dead link
    assert book.update([], 24 * MS) is None
    more = book.update([news(lost=2, loss_streak=3, age_ms=1), news(port=9322, answered=1)], 30 * MS)
    row, other = more["paths"]
    assert (row["dead"], row["first_lost_age_ns"], row["last_lost_age_ns"]) == (True, 14 * MS, 1 * MS)
    assert (row["links"], other["path"]) == (["up", "s1"], 9322)
    codec.encode("PathStatusReport", more)
    assert book.update([news(answered=1)], 31 * MS)["paths"] == [], "it lives again, at once"
    assert book.update([news(answered=1)], 1000 * MS) is None
    assert book.update([news(answered=1)], 1031 * MS)["paths"] == [], "it is still there"


def test_continuing_losses_are_reported_less_often():
    book = PathStatusTracker("h1/eth1", 5, lambda peer, port: ["up"])
    reported_ms = [
        ms for ms in range(2000) if book.update([news(lost=1, loss_streak=ms + 1)], ms * MS) is not None
    ]
    assert reported_ms[:6] == [0, 5, 15, 35, 75, 115]
    assert len(reported_ms) < 60


@pytest.mark.parametrize("seed", range(30))
def test_a_report_gives_the_same_dead_links_as_all_paths(seed):
    rng = random.Random(seed)
    names = [f"l{i}" for i in range(12)]
    routes = {(f"h{i}/eth1", port): rng.sample(names, 4) for i in range(2, 9) for port in (9320, 9321, 9322)}
    cut = set(rng.sample(names, rng.randrange(3)))
    book = PathStatusTracker("h1/eth1", 5, lambda peer, port: routes[peer, port])
    links, lost = DeadLinks(), dict.fromkeys(routes, 0)
    every = {}
    for ms in range(0, 400, 5):
        news_records = []
        for name in rng.sample(sorted(routes), 6):
            dead = ms >= 100 and cut.intersection(routes[name])
            lost[name] = lost[name] + 1 if dead else 0
            news_records.append(
                news(*name, lost=int(bool(dead)), answered=int(not dead), loss_streak=lost[name])
            )
            row = every.setdefault(name, {"answered": None, "first": None, "last": None})
            if dead:
                row["first"], row["last"] = (row["first"] if lost[name] > 1 else ms), ms
            else:
                row["answered"] = ms
        last = book.update(news_records, ms * MS)
        if last is None:
            continue
        links.take(codec.decode(codec.encode("PathStatusReport", last), "PathStatusReport"), ms * MS)
        whole = DeadLinks()
        rows = []
        for (peer, port), row in every.items():
            age_ms = {event: None if at is None else ms - at for event, at in row.items()}
            at_ms = (age_ms["last"], age_ms["first"]) if lost[peer, port] else ()
            its = routes[peer, port], lost[peer, port], age_ms["answered"], *at_ms
            rows.append(path(*its, peer=peer, port=port))
        whole.take(status_report(*rows), 0)
        assert links.dead == whole.dead


def test_the_report_of_a_dead_nic_with_many_peers_arrives(tmp_path):
    receiver = receive_at(tmp_path / "path-status.sock", 4 << 20)
    names = [f"a-host-with-a-long-name-{number}/mlx5_bond_0" for number in range(6000)]
    book = PathStatusTracker(
        "h1/eth1", 5, lambda peer, port: ["h1:eth1>leaf1:h1", "leaf1:s1>spine1:l1", f"spine1>{peer}"]
    )
    reporter = PathStatusReporter(tmp_path / "path-status.sock", book)
    try:
        reporter.update([news(peer=name, lost=3, loss_streak=3) for name in names])
        data = received(receiver, 1 << 20)
    finally:
        reporter.close()
        receiver.close()
    links = DeadLinks()
    report = codec.decode(data, "PathStatusReport")
    links.take(report, report["monotonic_ns"])
    assert "h1:eth1>leaf1:h1" in links.dead
