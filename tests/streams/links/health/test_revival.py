"""Revival: a dead link is up once paths cross it again and stay alive."""

from __future__ import annotations

from tests.streams.links.watched import MS, WARM, S, small


def test_it_is_up_again_once_paths_cross_it_and_stay_alive() -> None:
    it = small()
    it.run(WARM)
    it.probes.down[it.link("spine3", "leaf4")] = True
    it.run(300 * MS)
    it.probes.down[:] = False
    healed = it.probes.now_ns
    cable = it.cable("spine3", "leaf4")
    it.run(600 * MS, until=lambda: it.state(cable) == "UP")
    assert it.ever_in("DOWN") == {cable}
    record = it.last(cable)
    assert abs(record["since_ns"] - healed) < 20 * MS
    assert record["links"]
    assert "up again" in record["text"]
    it.run(1500 * MS)
    assert it.state(cable) == "UP"
    assert it.last(cable)["seq"] == 2


def test_a_path_that_moved_away_does_not_clear_the_dead_link() -> None:
    it = small()
    it.run(WARM)
    it.probes.down[it.link("leaf1", "spine2")] = True
    it.run(200 * MS)
    cable = it.cable("leaf1", "spine2")
    assert it.state(cable) == "DOWN"
    book, name = it.probes.book, it.fleet.link_ids[it.link("leaf1", "spine2")]
    other = it.fleet.link_ids[it.link("leaf1", "spine4")]
    far = {leaf: it.fleet.link_ids[it.link("spine4", leaf)] for leaf in ("leaf2", "leaf3", "leaf4")}
    for links in (book._forward, book._reverse):
        for key, route in links.items():
            if name in route:
                links[key] = (route[0], other, far[route[2].split(">")[1].split(":")[0]], route[3])
    book.version += 1
    it.probes.down[:] = False  # as the packets see it: they go another way now
    it.run(3 * S)
    assert it.state(cable) == "DOWN"
