"""HTTP routes with which users write notes about alerts and pause all actions.

The routes exist only if the page has a login. Each route checks the user's role. The user's name is in
`AlertNote.author` or `ActuatorConfig.by` of the written records, and in a line of the process's log.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, HTTPException, Request
from pydantic import BaseModel, Field

from fabrictime.commands.alert.notes import AlertNotes, changed_note
from fabrictime.commands.config import pause
from fabrictime.commands.config.live_config import LiveRecords
from fabrictime.runtime.user import acting_as
from fabrictime.web.users import Role, User
from schemas.kafka.settings import KafkaSettings
from schemas.signing import NO_CONTROL, ControlSettings

NS_PER_S: Final = 1_000_000_000

_log = logging.getLogger(__name__)


class Matching(BaseModel, extra="forbid"):
    """Selects alerts of which all hosts, racks or links match a pattern."""

    scope: str = Field(description="host, rack or link")
    pattern: str = Field(max_length=512, description="names with * and ?")


class NewNote(BaseModel, extra="forbid"):
    """A user's note about the alerts of a subject."""

    subject: str = Field(max_length=512, description="subject or id of an alert, or a unique part of one")
    comment: str = Field("", max_length=2000)
    owner: str | None = Field(None, max_length=200, description="person or team that works on the problem")
    acknowledge: bool = Field(False, description="whether reminders end")
    maintenance: Matching | None = Field(
        None, description="alerts that it concerns, in place of the subject's"
    )
    silence_s: int = Field(0, ge=0, le=30 * 86_400, description="s without notifications; 0: no silence")


class Pause(BaseModel, extra="forbid"):
    """Body of a request to pause all actions."""

    revert: bool = Field(False, description="whether the actions in force are undone")


def needs(role: Role) -> Callable[[Request], Iterator[User]]:
    """Return a FastAPI dependency that admits users with at least `role` and returns the user to a route."""

    def admitted(request: Request) -> Iterator[User]:
        user: User = request.state.user
        if user.role < role:
            raise HTTPException(403, f"user {user.name}: expected the role {role.name.lower()}")
        yield user

    return admitted


Configurer = Annotated[User, Depends(needs(Role.CONFIGURE))]
Actor = Annotated[User, Depends(needs(Role.ACT))]


class Changes:
    """The routes. Each reads the present records from the log, and waits until the log has its new ones."""

    def __init__(self, cluster: KafkaSettings, control: ControlSettings = NO_CONTROL) -> None:
        """Write records to the log of `cluster`."""
        self._cluster, self._registry, self._control = cluster, cluster.registry(), control

    def router(self) -> APIRouter:
        """Return a router with all routes below /api/v1."""
        router = APIRouter(prefix="/api/v1", tags=["changes"])
        for path, method in (("/notes", self.note), ("/pause", self.pause), ("/resume", self.resume)):
            router.add_api_route(path, method, methods=["POST"])
        return router

    def note(self, new: NewNote, user: Configurer) -> dict[str, Any]:
        """Write a note about the alerts of a subject; needs the role configure."""

        def publish() -> dict[str, Any]:
            notes, now_ns = AlertNotes(self._cluster, self._registry), time.time_ns()
            silence = (now_ns, now_ns + new.silence_s * NS_PER_S) if new.silence_s else None
            window = new.maintenance
            note = changed_note(
                notes.note_of(notes.subject_of(new.subject), now_ns)
                if window is None
                else notes.window_note(window.scope, window.pattern, now_ns),
                now_ns,
                comment=new.comment,
                owner=new.owner,
                acknowledge=new.acknowledge,
                silence=silence,
            )
            notes.publish([note])
            return dict(note)

        return self._as(user, f"notes {new.subject}", publish)

    def pause(self, order: Pause, user: Actor) -> dict[str, Any]:
        """Stop all action on all hosts, and wait for the actuators; needs the role act."""
        return self._as(
            user,
            "pauses all action",
            lambda: asdict(pause.pause(self._live(), revert=order.revert, registry=self._registry)),
        )

    def resume(self, user: Actor) -> dict[str, Any]:
        """Restore the modes in force before the pause, and wait for the actuators; needs the role act."""
        return self._as(
            user, "resumes action", lambda: asdict(pause.resume(self._live(), registry=self._registry))
        )

    def _live(self) -> LiveRecords:
        return LiveRecords(self._cluster, self._registry, self._control)

    def _as(self, user: User, text: str, change: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Run `change` with `user` as author of its records. A ValueError becomes HTTP 409 with its text."""
        _log.info("user %s on the page of %s: %s", user.name, socket.gethostname(), text)
        try:
            with acting_as(user.name):
                return change()
        except ValueError as error:
            raise HTTPException(409, str(error)) from None
