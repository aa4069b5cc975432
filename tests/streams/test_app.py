"""The table of stages: each runs in one app, no two read the same partitions, and the topics know them."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from streams.app import APPS, STAGES
from streams.runtime.operator import Stage
from streams.runtime.settings import Stage as StageName


def test_every_stage_of_the_settings_runs_in_one_app() -> None:
    names = Counter(name for _, names, _ in APPS for name in names)
    assert set(names) == set(get_args(StageName)) - {"sink"} == {name for name, _ in STAGES}
    assert set(names.values()) == {1}
    assert len({stage.name for _, stage in STAGES}) == len(STAGES)


def test_a_partition_has_one_receiver_in_an_app() -> None:
    for suffix, names, _ in APPS:
        owners = Counter(
            stage.owner for name, stage in STAGES if name in names and (stage.per_partition or joins(stage))
        )
        assert set(owners.values()) == {1}, suffix


def joins(stage: type[Stage]) -> bool:
    """Return whether a stage without a receiver joins the group by its owner topic."""
    return stage.owner in stage.outputs


def test_a_stage_over_all_partitions_reads_its_inputs_and_has_owners() -> None:
    """A worker reads only inputs with a start. It gets partitions of owner topics of its group alone."""
    for _, names, _ in APPS:
        stages = [stage for name, stage in STAGES if name in names]
        owner_topics = {stage.owner for stage in stages if stage.per_partition or joins(stage)}
        for stage in stages:
            if not stage.per_partition:
                assert all(each.start is not None for each in stage.inputs), stage.name
                assert stage.owner in owner_topics, stage.name


def test_the_topics_name_the_workers_that_write_and_read_them() -> None:
    for name, stage in STAGES:
        service = "map" if name == "map" else "solve"
        assert all(service in topic.writers for topic in stage.outputs), stage.name
        topics = {each.topic for each in stage.inputs} | set(stage.tables)
        if stage.per_partition:
            topics.add(stage.owner)
        assert all({"map", "solve"} & set(topic.readers) for topic in topics), stage.name
