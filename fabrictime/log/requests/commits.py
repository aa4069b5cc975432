"""Answers the Kafka requests OffsetCommit and OffsetFetch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from fabrictime.log.errors import Code, LogError
from fabrictime.log.groups import Coordinator
from fabrictime.log.offsets import Committed, OffsetStore
from fabrictime.log.store import Store
from fabrictime.log.wire import Fields

MAX_METADATA_BYTES: Final = 32 * 1024
"""Longest metadata that a commit may carry; Kafka's own limit is 4 KiB."""
_NOT_COMMITTED: Final = Committed(-1, "")


class CommitRequests:
    """Handles the requests to commit offsets and to read committed offsets."""

    def __init__(self, store: Store, offsets: OffsetStore, groups: Coordinator) -> None:
        self._store = store
        self._offsets = offsets
        self._groups = groups

    def offset_commit(self, _: int, fields: Fields) -> Fields:
        """Store the offsets that a member commits. Refuse all if the member is of an earlier generation."""
        group = fields["consumer_group"] or ""
        refused = self._refusal(group, fields)
        checked = [(name, entry, refused or self._check(name, entry)) for name, entry in _entries(fields)]
        offsets = {
            (name, entry["partition"]): Committed(max(entry["offset"], 0), entry["metadata"] or "")
            for name, entry, code in checked
            if code is Code.NONE
        }
        failed = self._write(group, offsets) if offsets else Code.NONE
        answers: dict[str, list[Fields]] = defaultdict(list)
        for name, entry, code in checked:
            answers[name].append({"partition": entry["partition"], "error_code": code or failed})
        return {"topics": [{"topic": name, "partitions": entries} for name, entries in answers.items()]}

    def _refusal(self, group: str, fields: Fields) -> Code:
        generation, member = fields["consumer_group_generation_id"], fields["consumer_id"] or ""
        try:
            self._groups.check_commit(group, generation, member)
        except LogError as error:
            return error.code
        return Code.NONE

    def _check(self, topic: str, entry: Fields) -> Code:
        try:
            self._store.partition(topic, entry["partition"])
        except LogError as error:
            return error.code
        too_large = len(entry["metadata"] or "") > MAX_METADATA_BYTES
        return Code.OFFSET_METADATA_TOO_LARGE if too_large else Code.NONE

    def _write(self, group: str, offsets: dict[tuple[str, int], Committed]) -> Code:
        try:
            self._offsets.commit(group, offsets)
        except OSError as error:
            self._store.out_of_space(f"offsets of group {group}: {error.strerror}")
            return Code.COORDINATOR_NOT_AVAILABLE
        return Code.NONE

    def offset_fetch(self, _: int, fields: Fields) -> Fields:
        """Return the committed offsets of the requested partitions, or of all partitions."""
        offsets = self._offsets.fetch(fields["consumer_group"] or "")
        requested = fields["topics"]
        if requested is None:
            numbers: dict[str, list[int]] = defaultdict(list)
            for topic, number in offsets:
                numbers[topic].append(number)
            requested = [
                {"topic": topic, "partitions": partition_numbers}
                for topic, partition_numbers in numbers.items()
            ]
        topics = []
        for topic in requested:
            partitions = []
            for number in topic["partitions"] or ():
                committed = offsets.get((topic["topic"] or "", number), _NOT_COMMITTED)
                partitions.append(
                    {
                        "partition": number,
                        "offset": committed.offset,
                        "metadata": committed.metadata,
                        "error_code": Code.NONE,
                    }
                )
            topics.append({"topic": topic["topic"], "partitions": partitions})
        return {"topics": topics, "error_code": Code.NONE}


def _entries(fields: Fields) -> Iterator[tuple[str, Fields]]:
    """Yield (topic, entry) for each partition of a commit."""
    for topic in fields["topics"] or ():
        for entry in topic["partitions"] or ():
            yield topic["topic"] or "", entry
