"""Shape: fleets as people write them, and settings that make none."""

from __future__ import annotations

import pytest

from producers.sim.settings import SimSettings, parse_fleet


def test_fleet_as_people_write_it():
    given = parse_fleet(
        "64,job=allreduce:32:train,job=alltoall:8,load=0.3,fault=grey 20% leaf1>spine2 after 5s"
    )
    settings = SimSettings(**given)
    assert (settings.nics, settings.load) == (64, 0.3)
    assert [(job.name, job.kind, job.nics) for job in settings.jobs] == [
        ("train", "allreduce", 32),
        ("alltoall-2", "alltoall", 8),
    ]
    assert settings.faults == ("grey 20% leaf1>spine2 after 5s",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a number of NICs first"),
        ("many", "expected a number of NICs first"),
        ("64,load", "expected job=, fault= or one of"),
        ("64,kafka=x:1", "expected job=, fault= or one of"),
        ("64,job=allreduce", "expected KIND:NICS"),
    ],
)
def test_fleet_that_makes_no_sense_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        parse_fleet(text)
