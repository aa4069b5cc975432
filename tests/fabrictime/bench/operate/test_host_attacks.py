"""No responder answers the bench's packets, and no setting opens a service without a login."""

from __future__ import annotations

from pathlib import Path

from fabrictime.bench.operate import _host_attacks


def test_the_responder_answers_nothing_but_the_genuine_packet(tmp_path: Path) -> None:
    attempts = list(_host_attacks._probes())
    assert len(attempts) > 50
    assert [name for _, name, is_accepted in attempts if is_accepted] == []
