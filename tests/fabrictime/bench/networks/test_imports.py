"""The bench of imports: each format describes its fabric, and wrong cables, kinds and crashes are found."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fabrictime.bench import Figure
from fabrictime.bench.networks import imports
from fabrictime.bench.networks.tool_files import FILES
from fabrictime.imports.formats import FORMATS
from fabrictime.testbed.fabric.topology import make_plan
from fabrictime.testbed.settings import FabricSettings

PLAN = make_plan(FabricSettings(hosts=3, leaves=2, spines=2))


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_describes_its_fabric(name: str) -> None:
    assert imports.differences(name, PLAN) == ""
    assert FORMATS.keys() == FILES.keys()


@pytest.mark.parametrize("name", ["lldp", "slurm", "ibnetdiscover", "ptm", "nccl"])
def test_a_missing_cable_or_device_is_a_difference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FILES[name](PLAN)
    first = next(iter(files.texts))
    lines = files.texts[first]
    cut = {"lldp": ("swp1", "swp9"), "slurm": ("h1,", ""), "ibnetdiscover": ("[1]", "[7]")}
    old, new = cut.get(name, ("eth1", "eth7"))
    files.texts[first] = lines.replace(old, new)
    assert files.texts[first] != lines
    monkeypatch.setitem(FILES, name, lambda plan: files)
    assert imports.differences(name, PLAN)


def test_crashes_are_counted_and_refusals_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(text: str, hints: object) -> None:
        raise ZeroDivisionError("odd")

    assert imports.fuzz(("ptm", 50)) == []
    monkeypatch.setitem(FORMATS, "ptm", replace(FORMATS["ptm"], read=read))
    assert imports.fuzz(("ptm", 3)) == ["ptm: ZeroDivisionError: odd"] * 3


def test_changed_texts_differ_and_repeat() -> None:
    text = "graph G { a:b -- c:d; }"
    found = {imports.changed(text, random.Random(seed)) for seed in range(100)}
    assert len(found) > 90
    assert imports.changed(text, random.Random(1)) == imports.changed(text, random.Random(1))


def test_a_wrong_format_lowers_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "side_by_side", lambda work, asked: map(work, asked))
    monkeypatch.setattr(imports, "QUICK_INPUTS", 5)
    monkeypatch.setattr(imports, "differences", lambda name, plan: "wrong" if name == "ptm" else "")
    figures = imports.measure(lambda line: None, quick=True)
    assert figures["imports_right"] == Figure(1 - 1 / 9, note="9 formats; wrong: ptm")
    assert figures["imports_fuzzed"] == Figure(5, note="changed texts of each format")
    assert figures["import_crashes"] == Figure(0, note="")
