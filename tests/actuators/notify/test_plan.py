"""When notifications are due: grouping, reminders, silences, rate limit, restart, transmissions."""

from hypothesis import given, settings
from hypothesis import strategies as st

from actuators.notify.notes import NoteIndex
from actuators.notify.plan import MAX_ALERTS, GroupPlan, SyncPlan
from actuators.notify.positions import Mark, Positions, decode_mark
from tests.actuators.notify.alerts import PLACE, T0, People, S, alert, note, rules
from tests.examples import examples


def ids(notification):
    return [alert_id for alert_id, _ in notification.news]


def test_eight_hosts_without_processor_time_are_one_notification():
    people = People()
    for k in range(8):
        people.take(alert(f"h{k}"), T0 + k * S // 4)
    [notification] = people.run(T0 + 60 * S)
    assert len(notification.firing) == 8
    assert people.committed == 8


def test_alerts_of_another_kind_or_shard_are_another_notification():
    people = People()
    people.take(alert("h1"), T0)
    people.take(alert("h2", shard="pod2"), T0)
    people.take(alert("h1", kind="HOST_DOWN"), T0)
    assert len(people.run(T0 + 60 * S)) == 3


def test_a_later_alert_of_the_group_waits_for_the_interval_and_lists_all():
    people = People()
    people.take(alert("h1"), T0)
    people.run(T0 + 6 * S)
    people.take(alert("h2"), T0 + 7 * S)
    assert people.run(T0 + 34 * S, from_ns=T0 + 7 * S) == []
    [second] = people.run(T0 + 40 * S, from_ns=T0 + 34 * S)
    assert ids(second) == [alert("h2")["alert_id"]]
    assert {one["subject"] for one in second.firing} == {"h1", "h2"}


def test_an_alert_that_ends_before_it_is_sent_is_sent_once_as_resolved():
    people = People()
    people.take(alert(), T0)
    people.take(alert(state="CLEARED"), T0 + S)
    [notification] = people.run(T0 + 60 * S)
    assert (notification.firing, len(notification.resolved)) == ((), 1)
    assert people.committed == 2


def test_updates_without_more_severity_are_no_news_and_escalations_are():
    people = People()
    people.take(alert(), T0)
    people.run(T0 + 10 * S)
    people.take(alert(update=1, grouped=["h9"]), T0 + 11 * S)
    assert people.run(T0 + 100 * S, from_ns=T0 + 11 * S) == []
    assert people.committed == 2
    people.take(alert(update=2, severity="CRITICAL"), T0 + 101 * S)
    assert len(people.run(T0 + 110 * S, from_ns=T0 + 101 * S)) == 1


def test_a_record_that_is_published_twice_is_no_news():
    people = People()
    for record in (alert(), alert(), alert(state="CLEARED"), alert(state="CLEARED"), alert()):
        people.take(record, T0)
    people.run(T0 + 100 * S)
    assert len(people.sent) == 1
    assert people.committed == 5


def test_an_active_alert_is_sent_again_until_someone_acknowledges_it():
    people = People()
    people.take(alert(), T0)
    sent = people.run(T0 + 7300 * S, 10 * S)
    assert [one.is_reminder for one in sent] == [False, True, True]
    people.notes.take("h1", note("h1", acknowledged_ns=T0 + 7300 * S))
    assert people.run(T0 + 15_000 * S, 10 * S, from_ns=T0 + 7310 * S) == []
    people.take(alert(state="CLEARED"), T0 + 15_000 * S)
    assert len(people.run(T0 + 15_100 * S, from_ns=T0 + 15_000 * S)) == 1, "its end is news"


def test_a_silence_withholds_an_alert_until_its_end():
    people = People()
    people.notes.take("h1", note("h1", silent_from_ns=T0 - S, silent_until_ns=T0 + 600 * S))
    people.take(alert(), T0)
    assert people.run(T0 + 599 * S) == []
    assert people.committed == 1, "the position need not wait for the silence"
    [notification] = people.run(T0 + 700 * S, from_ns=T0 + 600 * S)
    assert ids(notification) == [alert()["alert_id"]]


def test_an_alert_that_begins_and_ends_in_a_window_is_not_sent():
    people = People()
    window = note("host:h*", scope="HOST", pattern="h*", silent_from_ns=T0, silent_until_ns=T0 + 600 * S)
    people.notes.take("host:h*", window)
    people.notes.take_rack("h1", None)
    people.take(alert(), T0 + S)
    people.take(alert(state="CLEARED"), T0 + 2 * S)
    assert people.run(T0 + 700 * S) == []
    assert people.committed == 2


def test_the_rate_limit_delays_and_loses_nothing():
    people = People(max_per_minute=3)
    for k in range(10):
        people.take(alert(f"h{k}", shard=f"s{k}", severity="CRITICAL" if k == 9 else "WARNING"), T0)
    assert len(people.run(T0 + 59 * S)) == 3
    assert people.sent[0].firing[0]["shard"] == "s9", "the most severe first"
    people.run(T0 + 600 * S, from_ns=T0 + 60 * S)
    assert {one.firing[0]["shard"] for one in people.sent} == {f"s{k}" for k in range(10)}
    assert people.committed == 10


def restarted(people, records, at_ns, handled_ns=None):
    """Return a successor of a plan that was killed after its last commit."""
    [(offset, metadata)] = people.positions.commits(
        people.plan.handled_ns(at_ns) if handled_ns is None else handled_ns, everywhere=True
    ).values()
    mark = decode_mark(offset, metadata)
    successor = People(people.notes)
    successor.positions = Positions({PLACE: mark})
    successor.plan = GroupPlan(rules(), people.notes, successor.positions, mark.handled_ns)
    for number, (record, arrived_ns) in enumerate(records):
        if successor.positions.is_news(PLACE, number):
            successor.plan.take(record, (PLACE, number), arrived_ns)
        else:
            successor.plan.restore(record, arrived_ns)
    successor.offset = len(records)
    return successor


def test_a_restart_during_a_silence_forgets_nothing_and_one_after_it_repeats_nothing():
    people = People()
    people.notes.take("h1", note("h1", silent_from_ns=T0 - S, silent_until_ns=T0 + 600 * S))
    records = [(alert(), T0)]
    people.take(*records[0])
    people.run(T0 + 300 * S)
    second = restarted(people, records, T0 + 300 * S)
    assert len(second.run(T0 + 700 * S, from_ns=T0 + 400 * S)) == 1
    third = restarted(second, records, T0 + 700 * S)
    assert third.run(T0 + 3000 * S, from_ns=T0 + 700 * S) == []


def test_a_restart_before_the_end_of_a_silence_was_sent_sends_it():
    people = People()
    people.notes.take("h1", note("h1", silent_from_ns=T0 - S, silent_until_ns=T0 + 600 * S))
    records = [(alert(), T0)]
    people.take(*records[0])
    people.run(T0 + 602 * S)  # the group waits for more
    second = restarted(people, records, T0 + 602 * S)
    assert len(second.run(T0 + 700 * S, from_ns=T0 + 602 * S)) == 1


events = st.lists(
    st.tuples(
        st.integers(0, 3),  # subject
        st.booleans(),  # clear, if it is active
        st.integers(0, 40),  # seconds until the next
        st.sampled_from(("run", "kill before the answer", "kill before the commit", "kill")),
    ),
    max_size=30,
)


@settings(max_examples=examples(200), deadline=None)
@given(events)
def test_kills_at_any_moment_lose_nothing_and_repeat_once(steps):
    """The log, the commits and the receiver survive; the plan does not."""
    records, active, sent, at_ns = [], {}, [], T0
    plan_holder = [People()]
    kills = 0

    def deliver(until_ns, how):
        nonlocal kills
        people = plan_holder[0]
        while (notification := people.plan.next(until_ns)) is not None:
            if how == "kill before the answer":
                kills += 1
                plan_holder[0] = people = restarted(people, records, until_ns)
                how = "run"
                continue
            sent.extend(notification.news)
            if how == "kill before the commit":
                kills += 1
                plan_holder[0] = people = restarted(people, records, until_ns)
                how = "run"
                continue
            people.plan.accepted(notification, until_ns)
        if how == "kill":
            kills += 1
            plan_holder[0] = restarted(people, records, until_ns)

    for number, (subject, is_clear, pause_s, how) in enumerate(steps):
        name = f"h{subject}"
        if is_clear and name in active:
            record = alert(name, state="CLEARED", raised_ns=active.pop(name))
        elif name not in active:
            active[name] = T0 + number
            record = alert(name, raised_ns=T0 + number, shard=f"s{subject % 2}")
        else:
            continue
        record["shard"] = f"s{subject % 2}"
        records.append((record, at_ns))
        plan_holder[0].take(record, at_ns)
        at_ns += pause_s * S
        deliver(at_ns, how)
    for _ in range(3):
        at_ns += 60 * S
        deliver(at_ns, "run")
    last = {record["alert_id"]: record["state"] for record, _ in records}
    assert set(last.items()) <= set(sent), "the last state of each alert is sent"
    repeats = {entry: sent.count(entry) - 1 for entry in set(sent)}
    assert all(count <= kills for count in repeats.values())


# ----------------------------------------------------------------------------------- Alertmanager


def synced():
    positions = Positions({PLACE: Mark(0)})
    return SyncPlan(rules(), positions), positions


def test_alertmanager_gets_records_at_once_in_order_and_active_alerts_again():
    plan, positions = synced()
    for k, record in enumerate((alert(), alert("h2"), alert(state="CLEARED"))):
        plan.take(record, (PLACE, k), T0)
    sent = []
    while (notification := plan.next(T0)) is not None:
        sent.append(notification)
        plan.accepted(notification, T0)
    assert [(len(n.firing), len(n.resolved), n.is_reminder) for n in sent] == [
        (2, 0, False),
        (0, 1, False),
        (1, 1, True),
    ]
    assert plan.next(T0 + 59 * S) is None
    assert plan.next(T0 + 60 * S).is_reminder
    assert positions.commits(0)[PLACE][0] == 3


def test_alertmanager_learns_that_an_alert_with_its_former_severity_is_over():
    plan, _ = synced()
    plan.take(alert(), (PLACE, 0), T0)
    plan.accepted(plan.next(T0), T0)
    plan.take(alert(update=1, severity="CRITICAL"), (PLACE, 1), T0 + S)
    first = plan.next(T0 + S)
    assert [(one["severity"], one["state"]) for one in first.resolved] == [("WARNING", "CLEARED")]
    plan.accepted(first, T0 + S)
    assert [one["severity"] for one in plan.next(T0 + S).firing] == ["CRITICAL"]


def test_a_restarted_plan_transmits_all_active_alerts_at_once():
    plan, _ = synced()
    for k in range(MAX_ALERTS + 5):
        plan.restore(alert(f"h{k}"), T0)
    transmitted = []
    while (notification := plan.next(T0)) is not None:
        transmitted += notification.firing
        plan.accepted(notification, T0)
    assert len({one["subject"] for one in transmitted}) == MAX_ALERTS + 5


def test_an_alert_that_ends_between_two_parts_of_a_transmission_is_not_raised_again():
    plan, _ = synced()
    for k in range(MAX_ALERTS + 5):
        plan.restore(alert(f"h{k}"), T0)
    plan.accepted(plan.next(T0), T0)
    plan.take(alert(f"h{MAX_ALERTS + 1}", state="CLEARED"), (PLACE, 0), T0)
    plan.accepted(plan.next(T0), T0)
    rest = plan.next(T0)
    assert f"h{MAX_ALERTS + 1}" not in {one["subject"] for one in rest.firing}


def test_alerts_below_the_min_severity_are_not_sent():
    positions = Positions({PLACE: Mark(0)})
    plan = GroupPlan(rules(min_severity="CRITICAL"), NoteIndex(), positions, T0)
    plan.take(alert(), (PLACE, 0), T0)
    assert plan.next(T0 + 100 * S) is None
    assert positions.commits(0)[PLACE][0] == 1


def test_an_alert_of_falling_severity_is_sent_until_its_end():
    people = People(min_severity="CRITICAL")
    people.take(alert(severity="CRITICAL"), T0)
    people.run(T0 + 10 * S)
    people.take(alert(severity="WARNING", update=1), T0 + 20 * S)
    people.take(alert(severity="WARNING", state="CLEARED", update=2), T0 + 30 * S)
    [end] = people.run(T0 + 8000 * S, 10 * S, from_ns=T0 + 30 * S)
    assert (end.firing, len(end.resolved)) == ((), 1)
    plan = SyncPlan(rules(min_severity="CRITICAL"), Positions({PLACE: Mark(0)}))
    plan.take(alert(severity="CRITICAL"), (PLACE, 0), T0)
    plan.take(alert(severity="WARNING", state="CLEARED", update=1), (PLACE, 1), T0 + S)
    assert plan.active() == []


def test_an_update_that_arrives_as_a_silence_ends_is_committed():
    people = People()
    people.notes.take("h1", note("h1", silent_from_ns=T0 - S, silent_until_ns=T0 + 10 * S))
    people.take(alert(), T0)
    people.run(T0 + 5 * S)
    people.take(alert(update=1), T0 + 11 * S)
    assert len(people.run(T0 + 60 * S, from_ns=T0 + 11 * S)) == 1
    assert people.committed == 2


def test_an_alert_that_is_raised_again_is_not_resolved_by_its_predecessor():
    plan, _ = synced()
    old, new = alert(), alert(raised_ns=T0 + 20 * S)
    for k, record in enumerate((old, alert(state="CLEARED"), new)):
        plan.take(record, (PLACE, k), T0 + 20 * S)
    sent = []
    for at_ns in (T0 + 20 * S, T0 + 100 * S):
        while (notification := plan.next(at_ns)) is not None:
            alerts = (*notification.firing, *notification.resolved)
            sent.append([(one["raised_ns"], one["state"]) for one in alerts])
            plan.accepted(notification, at_ns)
    is_new = [(new["raised_ns"], "RAISED")]
    assert sent == [[(T0, "RAISED")], [(T0, "CLEARED")], is_new, is_new, is_new]


def test_a_flood_of_reminders_reads_the_notes_of_those_alone_that_are_sent():
    class CountingNotes(NoteIndex):
        reads = 0

        def silence_at(self, *arguments):
            self.reads += 1
            return super().silence_at(*arguments)

    people = People(CountingNotes(), max_per_minute=3)
    for k in range(100):
        people.plan.restore(alert(f"h{k}", shard=f"s{k}"), T0)
    people.notes.reads = 0
    assert len(people.run(T0 + 3630 * S, from_ns=T0 + 3600 * S)) == 3
    assert people.notes.reads == 3
    assert len(people.run(T0 + 6000 * S, from_ns=T0 + 3631 * S)) == 97
