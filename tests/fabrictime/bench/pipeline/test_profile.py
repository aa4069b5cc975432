"""The worker's profile: kinds of stacks, and processor time divided thread by thread."""

from __future__ import annotations

import pytest

from fabrictime.bench import Missing
from fabrictime.bench.pipeline import _profile
from fabrictime.bench.pipeline._profile import kind_of, profile, split

MAIN = "thread (10): MainThread;main (streams/app.py:226);run_forever (asyncio/base_events.py:607)"


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        (["solve (streams/queues/inference.py:260)", "dot (numpy/core.py:9)"], "inference"),
        (["solve (streams/queues/inference.py:260)", "encode (schemas/codec.py:9)"], "operators"),
        (["process (streams/queues/stage.py:160)"], "operators"),
        (["process (streams/links/stage.py:9)", "read (streams/runtime/faust/ownership.py:7)"], "transport"),
        (["fit (/tmp/tree/streams/clock/pairs.py:3)"], "operators"),
        (["decode (schemas/kafka/reader.py:3)"], "transport"),
        (["main (fabrictime/runtime/service.py:242)", "f (faust/transport/consumer.py:9)"], "transport"),
        (["f (site-packages/x/streams/queues/inference.py:9)"], "transport"),
    ],
)
def test_the_innermost_frame_of_ours_decides(frames: list[str], kind: str) -> None:
    assert kind_of(frames) == kind


def test_each_threads_time_is_divided_by_its_own_samples() -> None:
    lines = [
        f"{MAIN};process (streams/links/stage.py:9) 30",
        f"{MAIN};f (faust/transport/consumer.py:9) 50",
        f"{MAIN};select (selectors.py:468) 900",
        "thread (11): queues_0;solve (streams/queues/inference.py:260) 10",
        "a line of another kind",
    ]
    kinds, samples = split(lines, {10: 1.0, 11: 0.5, 12: 0.25})
    # thread 10 ran for 100 samples: 20 of those in select were no waiting
    assert kinds == pytest.approx({"transport": 0.7 + 0.25, "operators": 0.3, "inference": 0.5})
    assert samples == 90


def test_without_a_profiler_the_reason_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_profile.shutil, "which", lambda *_, **__: None)
    missing = profile(1, 1.0)
    assert isinstance(missing, Missing)
    assert "py-spy" in missing.reason
