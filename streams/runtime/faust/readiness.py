"""The readiness and status that a worker reports to its supervisor."""

from __future__ import annotations

from collections.abc import Callable

from schemas.service_notifier import ServiceNotifier


class Readiness:
    """Reports readiness and status to the supervisor once all services are ready."""

    def __init__(self) -> None:
        self._partitions: list[int | None] = []
        self._notes: dict[str, str] = {}
        """Maps subject to its line in the status."""

    def part(self) -> Callable[[int], None]:
        """Register a service; return the function to call with its number of partitions when it is ready."""
        at = len(self._partitions)
        self._partitions.append(None)

        def ready(partitions: int) -> None:
            self._partitions[at] = partitions
            if self._report():
                ServiceNotifier().notify("READY=1")

        return ready

    def note(self, subject: str, text: str) -> None:
        """Set the status line about a subject; remove the line if `text` is empty."""
        before = self._notes.pop(subject, "")
        if text:
            self._notes[subject] = text
        if text != before:
            self._report()

    def _report(self) -> bool:
        """Report the status; return whether all services are ready."""
        ready = [each for each in self._partitions if each is not None]
        if len(ready) < len(self._partitions):
            return False
        notes = [self._notes[subject] for subject in sorted(self._notes)]
        ServiceNotifier().notify(f"STATUS={'; '.join([f'{sum(ready)} partitions', *notes])}")
        return True
