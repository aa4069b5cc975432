"""Measures `fabrictime topology import`: files of each tool against the fabric that they describe.

The testbed's plan is written as each tool's files (tool_files.py). An import is right if it has exactly the
plan's cables and kinds of nodes; for NCCL's files, the devices of hosts. Then randomly changed texts are
read: any error except `BadImport` is a crash.
"""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._parts import side_by_side
from fabrictime.bench.networks.tool_files import FILES
from fabrictime.imports.base import BadImport, Hints
from fabrictime.imports.formats import FORMATS, import_files
from fabrictime.testbed.fabric.topology import Plan, make_plan
from fabrictime.testbed.settings import FabricSettings

SHAPE: Final = FabricSettings(hosts=16, leaves=4, spines=3)
FUZZED_SHAPE: Final = FabricSettings(hosts=2, leaves=2, spines=1)
"""A small fabric: short texts are read faster, and a random change hits the structure more often."""
INPUTS, QUICK_INPUTS = 1_000_000, 2_000
MAX_CHANGES, MAX_CUT = 6, 12
INSERTED: Final = '"[]{}<>/\\=:,;#\0\n\té\U0001f600-0159'
SEED: Final = 28
MAX_SHOWN: Final = 3


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Import the files of each format, then a million changed texts of each format, or 2,000 with `quick`."""
    plan = make_plan(SHAPE)
    wrong = {name: difference for name in FORMATS if (difference := differences(name, plan))}
    for name, difference in wrong.items():
        progress(f"imports: {name}: {difference}")
    inputs = QUICK_INPUTS if quick else INPUTS
    crashes: list[str] = []
    for name, format_crashes in zip(
        FORMATS, side_by_side(fuzz, [(name, inputs) for name in FORMATS]), strict=True
    ):
        progress(f"imports: {name}: {inputs} inputs, {len(format_crashes)} crashes")
        crashes += format_crashes
    return {
        "imports_right": Figure(
            1 - len(wrong) / len(FORMATS), note=f"{len(FORMATS)} formats; wrong: {', '.join(wrong) or 'none'}"
        ),
        "imports_fuzzed": Figure(inputs, note="changed texts of each format"),
        "import_crashes": Figure(len(crashes), note="; ".join(crashes[:MAX_SHOWN])),
    }


def differences(name: str, plan: Plan) -> str:
    """Return the first difference between a format's import and the plan, or '' if they are equal."""
    files = FILES[name](plan)
    with TemporaryDirectory() as folder:
        paths = [Path(folder, file) for file in files.texts]
        for path in paths:
            path.write_text(files.texts[path.name], encoding="utf-8")
        try:
            topology = import_files(paths, hints=Hints(hosts="h*"))
        except BadImport as error:
            return str(error)
    cables = {frozenset(link.ends) for link in topology.links}
    if cables != files.cables:
        return f"cables differ: {sorted(map(sorted, cables ^ files.cables))[:MAX_SHOWN]}"
    kinds = {node.name: node.kind for node in topology.nodes}
    expected = {node.name: node.kind for node in plan.nodes.values() if files.cables or node.kind == "host"}
    if kinds != expected:
        return f"kinds differ: {sorted(kinds.items() ^ expected.items())[:MAX_SHOWN]}"
    if not files.cables:
        devices = {node.name: sorted(node.ports) for node in topology.nodes}
        expected_devices = {node: sorted(port.name for port in plan.nodes[node].ports) for node in expected}
        return "" if devices == expected_devices else f"devices differ: {devices}"
    return ""


def fuzz(task: tuple[str, int]) -> list[str]:
    """Read randomly changed texts of a format; return a line for each crash."""
    name, inputs = task
    draw = random.Random(f"{SEED} {name}")  # noqa: S311  # repeatable
    texts = list(FILES[name](make_plan(FUZZED_SHAPE)).texts.values())
    crashes: list[str] = []
    for _ in range(inputs):
        text = changed(draw.choice(texts), draw)
        try:
            FORMATS[name].fits(text)
            FORMATS[name].read(text, Hints("h1"))
        except BadImport:
            continue
        except Exception as error:  # noqa: BLE001  # what the bench counts
            crashes.append(f"{name}: {type(error).__name__}: {error}"[:200])
    return crashes


def changed(text: str, draw: random.Random) -> str:
    """Return a text with some parts cut, doubled, moved or replaced."""
    for _ in range(draw.randint(1, MAX_CHANGES)):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.randint(0, MAX_CUT))
        source = draw.randrange(len(text) + 1)
        put = draw.choice(
            (
                "",
                2 * text[at:end],
                text[source : source + MAX_CUT],
                draw.choice(INSERTED),
                "null",
                str(draw.getrandbits(70)),
            )
        )
        text = text[:at] + put + text[end:]
    return text
