"""Publishes the results of a stage's operators: outputs, rejected messages and failed evaluations.

An error costs one message or output, but never stops the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any

from schemas import codec
from schemas.kafka.message import Message
from schemas.log_fields import log_fields
from schemas.signing import SIGNED
from schemas.topics import Topic
from schemas.unexpected import DATA_ERRORS
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.faust.context import WorkerContext
from streams.runtime.faust.rejects import send_reject
from streams.runtime.operator import Operator, Output, Stage
from streams.runtime.rejects import failed_evaluation

log = logging.getLogger(__name__)

Acknowledgements = list[asyncio.Future[Any]]


class Publisher:
    """Publishes the outputs of one stage's operators. Rejects of failed evaluations name `topic`."""

    def __init__(self, context: WorkerContext, stage: Stage, topic: Topic) -> None:
        self._context, self._stage, self._topic = context, stage, topic

    def encoded(self, operator: Operator, outputs: Iterable[Output]) -> list[Output]:
        """Encode outputs; reject and omit outputs that cannot be encoded."""
        return [output for output in outputs if self._encode(operator, output)]

    def _encode(self, operator: Operator, output: Output) -> bool:
        signer = self._context.signer if output.topic.name in SIGNED else None
        try:
            if signer is not None and output.body is None and output.record is not None:
                record = signer.signed(output.topic, output.key, output.record)
                output.body = codec.encode(output.topic.record, record, self._context.registry)
            output.value(self._context.registry)
        except DATA_ERRORS as error:
            operator.failed.append((output.key, error))
            return False
        return True

    async def publish(
        self,
        operator: Operator,
        outputs: Iterable[Output],
        sent: Acknowledgements,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        """Send outputs in their order, then the operator's rejects; add their acknowledgements to `sent`.

        No more messages are sent once `may_send` returns False.
        """
        for _, group in groupby(outputs, key=lambda output: output.topic.name):
            for output in group:
                if not may_send():
                    return
                if self._encode(operator, output):
                    await self._send(operator, output, sent)
            await asyncio.sleep(0)  # lets the producer send them before the next record is encoded
        if not may_send():
            return
        sent += [self.reject(*rejected) for rejected in operator.rejected]
        for key, error in operator.failed:
            self._context.failed_evaluations += 1
            sent.append(self.reject(failed_evaluation(self._topic.name, key), error, self._stage.name))
        operator.rejected.clear()
        operator.failed.clear()

    async def _send(self, operator: Operator, output: Output, sent: Acknowledgements) -> None:
        """Pass an output to the producer; reject an output that the log would refuse."""
        if output.text:
            log.info("%s: %s", self._stage.name, output.text, extra=log_fields(output.record))
        try:
            sending = await self._context.send_bytes(output.topic.name, output.key, output.value())
        except ValueError as refused:  # too large for the log
            operator.failed.append((output.key, refused))
        else:
            self._context.outputs.take(output)
            sent.append(asyncio.ensure_future(sending))

    def reject(self, message: Message, error: Exception, reader: str | None = None) -> asyncio.Future[None]:
        """Publish the reject of a message; return a future that completes at the log's acknowledgement."""
        reader = reader or self._stage.reject_reader
        return asyncio.ensure_future(send_reject(self._context, message, reader, error))

    def survive(self, key: str) -> AbstractContextManager[None]:
        """Convert an unexpected error in the evaluation of a key to a reject."""
        return self._context.survive(self._stage.name, self._topic, key)


def take(operator: Operator, messages: Sequence[Message], tables: FabricTables) -> bool:
    """Let an operator take messages; return False if an error prevented it.

    Operators reject bad messages one by one. An unexpected error costs the whole batch: the message that
    caused it is not known, and none may be taken twice. So all messages are rejected.
    """
    try:
        operator.take(messages, tables)
    except DATA_ERRORS as error:
        rejected = {(message.place, message.offset) for message, _ in operator.rejected}
        others = (each for each in messages if (each.place, each.offset) not in rejected)
        operator.rejected += [(message, error) for message in others]
        return False
    return True
