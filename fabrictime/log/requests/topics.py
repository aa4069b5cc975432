"""Answers the Kafka requests Metadata, CreateTopics and DeleteTopics."""

from __future__ import annotations

import logging

from fabrictime.log.errors import Code, LogError
from fabrictime.log.offsets import OffsetStore
from fabrictime.log.requests.base import NODE_ID, Peer
from fabrictime.log.settings import LogSettings
from fabrictime.log.store import Store
from fabrictime.log.wire import Fields

log = logging.getLogger(__name__)


class TopicRequests:
    """Handles requests for the list of topics, and to create and delete topics."""

    def __init__(self, settings: LogSettings, address: Peer, store: Store, offsets: OffsetStore) -> None:
        self._settings = settings
        self._address = address
        self._store = store
        self._offsets = offsets

    def metadata(self, version: int, fields: Fields) -> Fields:
        """Return the broker and the requested topics. Create missing topics if the request allows it."""
        names = fields["topics"]
        if names is None or (version == 0 and not names):
            names = list(self._store.topics)
        may_create = self._settings.auto_create_topics and fields.get("allow_auto_topic_creation", True)
        host, port = self._address
        return {
            "brokers": [{"node_id": NODE_ID, "host": host, "port": port, "rack": None}],
            "cluster_id": self._store.cluster_id,
            "controller_id": NODE_ID,
            "topics": [self._topic(name, may_create) for name in dict.fromkeys(name or "" for name in names)],
        }

    def _topic(self, name: str, may_create: bool) -> Fields:
        code = Code.NONE if name in self._store.topics else self._find_or_create(name, may_create)
        count = len(self._store.topics[name].partitions) if code is Code.NONE else 0
        return {
            "error_code": code,
            "topic": name,
            "is_internal": False,
            "partitions": [
                {
                    "error_code": Code.NONE,
                    "partition": number,
                    "leader": NODE_ID,
                    "replicas": [NODE_ID],
                    "isr": [NODE_ID],
                    "offline_replicas": [],
                }
                for number in range(count)
            ],
        }

    def _find_or_create(self, name: str, may_create: bool) -> Code:
        """Create the topic if it is missing and `may_create` is true. Return the error code for the
        client.
        """
        partitions = self._settings.partitions
        try:
            if may_create:
                self._store.create_topic(name, partitions, {})
                return Code.NONE
            self._store.check_new(name, partitions, {})
        except LogError as error:
            return error.code
        return Code.UNKNOWN_TOPIC_OR_PARTITION

    def create_topics(self, _: int, fields: Fields) -> Fields:
        """Create topics, or only check whether they could be created if the client requests a check."""
        answers = []
        for want in fields["create_topic_requests"] or ():
            name, code, message = want["topic"] or "", Code.NONE, None
            try:
                partitions = self._new_partitions(want)
                config = {entry["config_key"]: entry["config_value"] or "" for entry in want["configs"] or ()}
                if fields.get("validate_only"):
                    self._store.check_new(name, partitions, config)
                else:
                    self._store.create_topic(name, partitions, config)
            except LogError as error:
                code, message = error.code, str(error)
            answers.append({"topic": name, "error_code": code, "error_message": message})
        return {"topic_errors": answers}

    def _new_partitions(self, want: Fields) -> int:
        assigned = want["replica_assignment"] or ()
        if assigned:
            if sorted(entry["partition_id"] for entry in assigned) != list(range(len(assigned))):
                raise LogError(Code.INVALID_PARTITIONS, "partitions of an assignment count from 0")
            if any(list(entry["replicas"] or ()) != [NODE_ID] for entry in assigned):
                raise LogError(Code.INVALID_REPLICATION_FACTOR, f"node {NODE_ID} is the only one")
            return len(assigned)
        if want["replication_factor"] not in (1, -1):
            raise LogError(
                Code.INVALID_REPLICATION_FACTOR,
                f"replication factor {want['replication_factor']}: expected 1",
            )
        count: int = want["num_partitions"]
        return self._settings.partitions if count == -1 else count

    def delete_topics(self, _: int, fields: Fields) -> Fields:
        """Delete topics and the offsets that groups committed for them."""
        answers = []
        for name in fields["topics"] or ():
            code = Code.NONE
            try:
                self._store.delete_topic(name or "")
                self._offsets.forget(topic=name)
            except LogError as error:
                code = error.code
            except OSError as error:
                log.warning("offsets of deleted topic %s stay: %s", name, error)
            answers.append({"topic": name, "error_code": code})
        return {"topic_error_codes": answers}
