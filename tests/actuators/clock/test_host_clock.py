"""A host's page over time: right within its bound, monotone, and UNSYNCED if the time is unknown."""

import pytest

from actuators.clock.host_clock import HostClock
from actuators.clock.page import ALWAYS_NS, pack, unpack
from schemas.records import ClockSync


def assert_right(host, content, ahead_ns=0):
    bound = content.slewed.bound_at(host.raw.reading(host.now_ns + ahead_ns))
    error = host.fabric_error_ns(content, ahead_ns)
    assert abs(error) <= bound, f"{error} ns off at a bound of {bound} ns"
    return bound


def assert_row_right(host, row, name, away_ns=0):
    t = abs(host.of(name).reading(host.now_ns + away_ns) - row.at_ns) * 1e-9
    bound = row.bound_ns + row.growth_ppb * t + row.wander_ppb_per_s * t * t
    error = host.row_error_ns(row, name, away_ns)
    assert abs(error) <= bound + 1, f"{name}: {error} ns off at a bound of {bound} ns"


def assert_never_back(host):
    """The models of successive pages, read where one replaces the other, never run backwards."""
    for before, after in zip(host.contents, host.contents[1:], strict=False):
        if ClockSync.UNSYNCED in (before.state, after.state) or after.steps != before.steps:
            continue
        at = after.slewed.model.raw_at_ns
        one, other = before.slewed.fabric_ns(at), after.slewed.fabric_ns(at)
        assert (other[0] - one[0]) + (other[1] - one[1]) > -1
        assert after.slewed.model.rate_ppb + after.slewed.slew_ppb > -1e8


def test_kernel_stamping_host_is_synced_within_its_bound(sim):
    host = sim.Host()
    assert host.step().state == ClockSync.UNSYNCED
    content = host.run(5)
    assert (content.state, content.source, content.domain) == (ClockSync.SYNCED, "system", "a")
    for _ in range(50):
        bound = assert_right(host, host.step())
        assert bound < 200  # 100 published, 30 bracket, 1 to 2 s of growth
    assert_row_right(host, host.contents[-1].clocks["system"], "system")
    assert_row_right(host, host.contents[-1].clocks["system"], "system", -2 * sim.S)
    assert_never_back(host)
    assert host.contents[-1].steps == 0


def test_ptp_clock_is_related_to_the_raw_clock_by_reading_both(sim):
    host = sim.Host()
    host.others["ptp0"] = sim.Clock(-37_000_000_000.0, -4_000.0)
    host.published = ["ptp0"]
    host.half_ns = 400.0
    content = host.run(8)
    assert (content.state, content.source) == (ClockSync.SYNCED, "ptp0")
    assert 500 < assert_right(host, content) < 900
    assert_row_right(host, content.clocks["ptp0"], "ptp0")
    assert content.clocks["ptp0"].bound_ns == pytest.approx(100.0)  # its own stamp needs no bracket
    assert_row_right(host, content.clocks["system"], "system")  # not published: by way of the raw clock


def test_ptp_clock_that_counts_from_its_power_on_is_as_exact_as_any(sim):
    """Its offset is as large as the epoch, where a double would have steps of 256 ns."""
    host = sim.Host()
    host.others["ptp0"] = sim.Clock(-sim.EPOCH + 77, 3_000.0)
    host.published = ["ptp0"]
    content = host.run(8)
    assert content.state == ClockSync.SYNCED
    assert assert_right(host, content) < 256
    assert_row_right(host, content.clocks["ptp0"], "ptp0")


def test_the_best_clock_is_the_source_and_a_slightly_better_one_does_not_replace_it(sim):
    host = sim.Host()
    host.others = {"ptp0": sim.Clock(1e6, 10.0), "ptp1": sim.Clock(2e6, 20.0)}
    host.published = ["ptp0", "ptp1"]
    host.states = {"ptp1": {"bound_ns": 90.0}, "ptp0": {"bound_ns": 100.0}}
    assert host.run(5).source == "ptp1"
    host.states["ptp0"]["bound_ns"] = 70.0
    assert host.run(3).source == "ptp1"
    host.states["ptp1"]["bound_ns"] = 5_000.0
    content = host.run(3)
    assert content.source == "ptp0"
    assert_right(host, content)
    assert_never_back(host)


def test_new_windows_are_slewed_without_running_backwards(sim):
    """Windows that disagree by 80 ns each time are slewed, and the remaining slew is in the bound."""
    host = sim.Host()
    host.error_ns = lambda name, window: 40.0 if window % 2 else -40.0
    host.run(5)
    for _ in range(60):
        assert_right(host, host.step())
    assert_never_back(host)
    rates = {round(content.slewed.slew_ppb) for content in host.contents[30:]}
    assert max(map(abs, rates)) <= 200  # slightly more than 80 ns in half a second
    assert host.contents[-1].steps == 0


def test_step_of_the_system_clock_does_not_move_fabric_time(sim):
    """CLOCK_REALTIME set 3 s back: fabric time continues, and stamps of both sides are distinguished."""
    host = sim.Host()
    host.run(6)
    host.system.steps.append((host.now_ns + 1, -3 * sim.S))
    for _ in range(3):
        content = host.step()
        assert content.state == ClockSync.SYNCED
        assert_right(host, content)
    content = host.run(1)
    row = content.clocks["system"]
    assert_row_right(host, row, "system")
    assert row.since_ns > ALWAYS_NS
    for _ in range(100):
        content = host.step()
        assert content.state != ClockSync.UNSYNCED
        assert_right(host, content)
        assert content.clocks["system"].state != ClockSync.UNSYNCED
        assert_row_right(host, content.clocks["system"], "system")
    assert content.state == ClockSync.SYNCED
    assert content.window == host._next_window - 1  # windows after the step are followed again
    assert content.steps == 0
    assert_never_back(host)


def test_after_a_step_an_unsynced_host_waits_for_newer_records(sim):
    host = sim.Host()
    host.solving = False
    host.run(3)
    host.system.steps.append((host.now_ns + 1, -400_000_000))
    host.step()
    host.solving = True
    content = host.run(5)
    assert content.state == ClockSync.UNSYNCED
    content = host.run(10)
    assert content.state == ClockSync.SYNCED
    assert_right(host, content)


def test_ntp_slew_of_the_system_clock_does_not_move_fabric_time(sim):
    """500 ppm from one moment on: a model on CLOCK_REALTIME would be 1 ms off two seconds later."""
    host = sim.Host()
    host.run(6)
    host.system.rates.append((host.now_ns + 50_000_000, 500_000.0))
    for _ in range(60):
        content = host.step()
        assert content.state == ClockSync.SYNCED
        assert_right(host, content)
        if host.now_ns > host.system.rates[0][0] + sim.S:
            assert_row_right(host, content.clocks["system"], "system")


def test_without_records_it_enters_holdover_then_unsynced(sim):
    host = sim.Host(holdover_after_s=5.0, expires_s=20.0)
    host.run(6)
    host.solving = False
    states = []
    for _ in range(150):
        content = host.step()
        states.append(content.state)
        if content.state != ClockSync.UNSYNCED:
            assert_right(host, content)
    changes = [state for state, last in zip(states, [None, *states], strict=False) if state != last]
    assert changes == [ClockSync.SYNCED, ClockSync.HOLDOVER, ClockSync.UNSYNCED]
    assert 3 * 5 <= states.count(ClockSync.SYNCED) <= 5 * 5
    assert states.index(ClockSync.UNSYNCED) in range(16 * 5, 20 * 5)
    host.solving = True
    content = host.run(4)
    assert content.state == ClockSync.SYNCED
    assert_right(host, content)


def test_the_pages_expiry_equals_that_of_a_living_writer(sim):
    host = sim.Host(holdover_after_s=5.0, expires_s=20.0)
    content = host.run(6)
    measured = host.raw.reading((content.window * sim.S) + sim.S // 2)
    assert content.holdover_raw_ns == pytest.approx(measured + 5 * sim.S, abs=1000)
    assert content.expires_raw_ns == pytest.approx(measured + 20 * sim.S, abs=1000)


def test_bound_covers_an_oscillator_that_wanders_through_holdover(sim):
    """60 s of extrapolation while the rate wanders: inside the bound to the end."""
    host = sim.Host(wander_ppb_per_sqrt_s=3.0, expires_s=80.0)
    host.run(6)
    host.solving = False
    for second in range(60):
        host.raw.rates.append((host.now_ns, 2.0 * (-1) ** (second // 7)))
        content = host.run(1)
        assert_right(host, content)
    assert content.state == ClockSync.HOLDOVER


def test_holdover_of_the_clock_stage_is_holdover_at_once(sim):
    host = sim.Host()
    host.run(6)
    host.states["system"] = {"state": "HOLDOVER", "bound_ns": 3_000.0}
    content = host.run(2)
    assert content.state == ClockSync.HOLDOVER
    assert assert_right(host, content) < 1_000  # our own model is no worse than theirs


def test_a_clock_in_holdover_is_better_than_none(sim):
    host = sim.Host()
    host.states["system"] = {"state": "HOLDOVER", "bound_ns": 3_000.0}
    content = host.run(6)
    assert content.state == ClockSync.HOLDOVER
    assert assert_right(host, content) > 3_000


def test_a_falseticker_and_its_earlier_records_are_not_used(sim):
    host = sim.Host()
    host.run(6)
    host.states["system"] = {"event": "FALSETICKER"}
    content = host.run(2)
    assert content.state == ClockSync.UNSYNCED
    assert content.clocks["system"].state == ClockSync.UNSYNCED


def test_a_falseticker_is_replaced_by_another_clock_of_the_host(sim):
    host = sim.Host()
    host.others = {"ptp0": sim.Clock(1e6, 10.0), "ptp1": sim.Clock(2e6, 20.0)}
    host.published = ["ptp0", "ptp1"]
    host.run(5)
    host.states[host.contents[-1].source] = {"event": "FALSETICKER"}
    falseticker_source = host.contents[-1].source
    content = host.run(2)
    assert content.state == ClockSync.SYNCED
    assert content.source != falseticker_source
    assert content.clocks[falseticker_source].state in (ClockSync.UNSYNCED, ClockSync.SYNCED)
    assert_right(host, content)


def test_a_large_jump_of_the_timeline_is_a_counted_step(sim):
    host = sim.Host()
    host.run(6)
    host.error_ns = lambda name, window: 5e6
    content = host.run(4)
    assert content.steps == 1
    assert content.state == ClockSync.SYNCED
    assert host.fabric_error_ns(content) == pytest.approx(5e6, abs=300)


def test_a_jump_below_the_limit_is_slewed_at_the_maximum_rate(sim):
    """60 us at 50 ppm take 1.2 s, and are in the bound until then."""
    host = sim.Host()
    host.run(6)
    moved_at = host._next_window
    host.error_ns = lambda name, window: 60_000.0 if window >= moved_at else 0.0
    for _ in range(25):
        content = host.step()
        own = 60_000.0 if content.window >= moved_at else 0.0
        bound = content.slewed.bound_at(host.raw_ns())
        assert abs(host.fabric_error_ns(content) - own) <= bound
        assert abs(content.slewed.slew_ppb) <= 50_001
    assert content.steps == 0
    assert host.fabric_error_ns(content) == pytest.approx(60_000, abs=300)
    assert_never_back(host)


def test_a_restarted_writer_continues_from_the_last_model(sim):
    host = sim.Host()
    host.error_ns = lambda name, window: 30.0 if window % 2 else -30.0
    before = host.run(6.4)
    assert before.slewed.remaining_ns(host.raw_ns()) != 0  # in the midst of a slew
    host.clock = HostClock("h1", host.clock.parameters, unpack(pack(before)))
    host.contents = [before]
    content = host.step()
    assert content.state == ClockSync.HOLDOVER
    assert content.window == before.window
    assert_right(host, content)
    content = host.run(4)
    assert content.state == ClockSync.SYNCED
    assert content.window > before.window
    assert content.steps == 0
    assert_right(host, content)
    assert_never_back(host)


def test_a_late_restart_finds_no_valid_model(sim):
    host = sim.Host()
    before = host.run(6)
    host.clock = HostClock("h1", host.clock.parameters, unpack(pack(before)))
    host.now_ns += 100 * sim.S
    host.solving = False
    assert host.step().state == ClockSync.UNSYNCED


def test_nics_of_the_host_map_to_their_clock(sim):
    host = sim.Host()
    nic = {"shard": "fabric", "clock": "h1/system"}
    host.clock.take_nic("h1/eth0", nic)
    host.clock.take_nic("h1/eth1", {"shard": "pod2", "clock": "h1/ptp0"})
    host.clock.take_nic("h1/eth2", nic)
    host.clock.take_nic("h1/eth2", None)
    host.clock.take_nic("h2/eth0", nic)
    host.clock.take_nic("h1/eth3", {"shard": "fabric", "clock": "h1/eth3"})
    content = host.run(4)
    assert content.nics == {"eth0": "system", "eth1": "ptp0"}
    assert host.clock.shards == {"fabric", "pod2"}
    assert content.clocks["ptp0"].state == ClockSync.UNSYNCED  # it timestamps a NIC but is not measured yet
    assert "eth3" in host.clock.clocks


def test_records_of_other_hosts_and_old_windows_change_nothing(sim):
    host = sim.Host()
    host.run(6)
    assert host.clock.take_offsets(host.record(host._next_window - 3), host.raw_ns()) == 0
    other = host.record(host._next_window + 5)
    other["clocks"][0]["clock"] = "h12/system"
    assert host.clock.take_offsets(other, host.raw_ns()) == 0
    other["clocks"][0]["clock"] = "h1"
    assert host.clock.take_offsets(other, host.raw_ns()) == 0
    assert_right(host, host.step())


def test_clock_of_another_domain_than_the_pages_is_not_converted(sim):
    """Times of two domains cannot be compared, so one page has only one of them."""
    host = sim.Host()
    host.others = {"ptp0": sim.Clock(1e6, 10.0), "ptp1": sim.Clock(2e6, 20.0)}
    host.published = ["ptp0"]
    for _ in range(30):
        content = host.step()
        record = host.record(host._next_window - 1)
        record["domain"] = "b"
        record["clocks"][0] |= {"clock": "h1/ptp1", "bound_ns": 900.0}
        host.clock.take_offsets(record, host.raw_ns())
    assert content.source == "ptp0"
    assert content.domain == "a"
    rows = host.step().clocks
    assert rows["ptp0"].state == ClockSync.SYNCED
    # by way of the raw clock it is in the page's own domain
    if rows["ptp1"].state != ClockSync.UNSYNCED:
        assert_row_right(host, rows["ptp1"], "ptp1")


@pytest.mark.parametrize("asleep_s", [0.05, 5, 90])
def test_after_a_suspend_the_page_is_unsynced_until_it_is_measured_again(sim, asleep_s) -> None:
    """The raw clock stands for a while; the system clock is right at the resume, as the kernel sets it."""
    host = sim.Host()
    host.run(8)
    asleep_ns = round(asleep_s * sim.S)
    host.now_ns += asleep_ns
    host.raw.steps.append((host.now_ns, -asleep_ns))
    steps = host.contents[-1].steps
    content = host.step()
    assert content.state == "UNSYNCED"
    assert content.steps == steps + 1
    for _ in range(5 * 30):
        content = host.step()
        if content.state == "SYNCED":
            break
    assert content.state == "SYNCED"
    for _ in range(5 * 10):
        content = host.step()
        assert abs(host.fabric_error_ns(content)) <= content.slewed.bound_at(host.raw_ns())


def test_a_step_of_the_system_clock_is_no_suspend(sim) -> None:
    host = sim.Host()
    host.run(8)
    host.system.steps.append((host.now_ns + 1, 3600 * sim.S))
    assert {host.step().state for _ in range(50)} == {"SYNCED"}
