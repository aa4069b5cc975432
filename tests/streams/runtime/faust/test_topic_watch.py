"""Topics that were deleted and made again, as a worker's watchdog sees them."""

from __future__ import annotations

from faust.types import TP

from streams.runtime.faust.topic_watch import ADOPT_S, BELOW_S, TopicWatch

NAME, PLACE = "fabric.links", TP("fabric.links", 0)


def test_a_topic_that_returned_without_a_rebalance_makes_the_worker_start_again() -> None:
    topics = TopicWatch()
    assert topics.check_topics(0, {NAME: 4}, {NAME: "first"}) is None
    assert topics.check_topics(5, {NAME: 0}, {NAME: "second"}) is None
    assert topics.missing == [NAME]
    assert topics.check_topics(100, {NAME: 4}, {NAME: "second"}) is None
    assert topics.missing == []
    assert topics.check_topics(100 + ADOPT_S, {NAME: 4}, {NAME: "second"}) is None
    reason = topics.check_topics(101 + ADOPT_S, {NAME: 4}, {NAME: "second"})
    assert reason == "fabric.links was made again 11 s ago and has no reader"


def test_a_rebalance_after_the_return_settles_it_whatever_the_worker_got() -> None:
    topics = TopicWatch()
    topics.check_topics(0, {NAME: 0}, {NAME: "second"})
    topics.check_topics(5, {NAME: 4}, {NAME: "second"})
    assert topics.check_topics(10, {NAME: 4}, {NAME: "third"}) is None
    assert topics.check_topics(100, {NAME: 4}, {NAME: "third"}) is None


def test_a_log_that_stays_below_the_position_was_made_again() -> None:
    topics = TopicWatch()
    assert topics.check_ends(0, {PLACE: 3}, {PLACE: 3}) is None
    assert topics.check_ends(1, {PLACE: 2}, {PLACE: 3}) is None
    assert topics.check_ends(2, {PLACE: 3}, {PLACE: 3}) is None
    assert topics.check_ends(3, {PLACE: 2}, {PLACE: 3}) is None
    reason = topics.check_ends(3 + BELOW_S, {PLACE: 2}, {PLACE: 3})
    assert reason == "fabric.links/0: ends at 2, below the position 3: the topic was made again"
