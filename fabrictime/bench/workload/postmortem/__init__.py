"""Measures `fabrictime explain --folder` on the files of simulated jobs, in the formats of the real software.

Each incident is drawn from a printed seed and written once in each format, and sometimes in several together.
The right answers about each folder are fixed before the product reads it (`truth`). The author of this
package has not read the product's readers.
"""

from __future__ import annotations

import contextlib
import io
import json
import secrets
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Final

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._parts import side_by_side
from fabrictime.bench.workload.postmortem.folders import write_folders
from fabrictime.bench.workload.postmortem.incident import draw_incident, kinds
from fabrictime.bench.workload.postmortem.run import simulate
from fabrictime.bench.workload.postmortem.truth import NO_CAUSE, Truth, right, truth

INCIDENTS: Final = 100
QUICK_INCIDENTS: Final = 10
NOTHING_READ: Final = 2
"""Exit code of a folder without a file of a known form."""
COMMAND_LINE: Final = "fabrictime.commands.cli"
"""The module of the command line, called in this process: starts of the interpreter would take longer."""


@dataclass(frozen=True, slots=True)
class Result:
    """The product's answer about one folder, with the truth."""

    name: str
    """Seed, number and kind of the incident, with the format."""
    kind: str
    form: str
    missing: bool
    truth: Truth
    answer: Mapping[str, Any]

    @property
    def right(self) -> bool:
        """Whether the answer is right."""
        return right(self.answer, self.truth)


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Return the shares of right answers: of all folders, and by format and cause."""
    seed = secrets.randbits(32)
    if "--folder" not in _call(["explain", "--help"])[1]:
        reason = Missing("fabrictime explain has no option --folder")
        return {"postmortem_right": reason, "postmortem_false_causes": reason, "postmortem_folders": reason}
    return figures(run(seed, QUICK_INCIDENTS if quick else INCIDENTS, progress))


def run(seed: int, count: int, progress: Progress) -> list[Result]:
    """Draw incidents, write their folders, and return the product's answers; print each wrong answer."""
    progress(f"postmortem: seed {seed}, {count} incidents")
    drawn = kinds(Random(seed), count)  # noqa: S311  # a drawn incident is no secret
    results: list[Result] = []
    for number, answers in enumerate(
        side_by_side(explain, [(seed, n, kind) for n, kind in enumerate(drawn)])
    ):
        results += answers
        for result in answers:
            if not result.right:
                progress(f"postmortem: wrong: {_complaint(result)}")
        if number % 10 == 9:
            progress(f"postmortem: {number + 1} incidents, {_share(results).note} right")
    return results


def explain(argument: tuple[int, int, str]) -> list[Result]:
    """Return the answers about one incident, given (seed, number, kind)."""
    seed, number, kind = argument
    rng = Random(f"{seed}/{number}")  # noqa: S311
    run = simulate(rng, draw_incident(rng, kind))
    results = []
    with tempfile.TemporaryDirectory(prefix="fabrictime-bench-postmortem-") as target:
        for path, folder in write_folders(Path(target), run, rng):
            name = f"{seed}/{number} {kind} {folder.form}"
            missing = bool(folder.missing or run.dead or any(part.missing for part in folder.parts))
            results.append(Result(name, kind, folder.form, missing, truth(run, folder), _answer(path)))
    return results


def _answer(path: Path) -> dict[str, Any]:
    """Return the product's answer about a folder; a crash or no JSON is an answer without a verdict.

    Exit code 2 means UNKNOWN: no file has a known format, such as a program's log without a line of PyTorch.
    """
    code, output, errors = _call(["explain", "--folder", str(path), "--json"])
    try:
        answer = json.loads(output)
    except ValueError:
        answer = {"verdict": "UNKNOWN" if code == NOTHING_READ else None}
        answer["text"] = f"exit code {code}: {errors[-300:] or output[-300:]}"
    return answer if isinstance(answer, dict) else {"text": f"no object: {output[:300]}"}


def _call(arguments: list[str]) -> tuple[int, str, str]:
    """Call the command line as its entry point does; return its exit code and outputs."""
    main: Callable[[], object] = import_module(COMMAND_LINE).main
    output, errors, code = io.StringIO(), io.StringIO(), 0
    before = sys.argv
    sys.argv = ["fabrictime", *arguments]
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            returned = main()
            code = returned if isinstance(returned, int) else 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except Exception:  # noqa: BLE001  # a crash of the product is a wrong answer
        code = 1
        errors.write(traceback.format_exc())
    finally:
        sys.argv = before
    return code, output.getvalue(), errors.getvalue()


def _complaint(result: Result) -> str:
    expected = "; ".join(
        f"{verdict} {sorted(culprits.needed)[:4] or ''}".strip() for verdict, culprits in result.truth.items()
    )
    verdict, culprits, text = (result.answer.get(key) for key in ("verdict", "culprits", "text"))
    return f"{result.name}: {verdict} {culprits} ({text}); expected {expected}"


def figures(results: list[Result]) -> dict[str, Value]:
    """Return the figures of a run."""
    innocent = [result for result in results if result.kind == "none"]
    false = [result for result in innocent if result.answer.get("verdict") not in NO_CAUSE]
    thin = sum(result.missing or result.kind == "none" for result in results)
    values: dict[str, Value] = {
        "postmortem_right": _share(results),
        "postmortem_false_causes": Figure(
            len(false), note=f"of {len(innocent)} folders of jobs without a fault"
        ),
        "postmortem_folders": Figure(len(results), note=f"{thin} with missing ranks or no fault"),
    }
    by_group: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_group[result.form.replace("-", "_")].append(result)
    for result in sorted(results, key=lambda result: result.kind):
        by_group[result.kind].append(result)
    return values | {f"postmortem_right_{name}": _share(group) for name, group in by_group.items()}


def _share(results: Iterable[Result]) -> Figure:
    answers = [result.right for result in results]
    return Figure(sum(answers) / len(answers), "1", f"{sum(answers)} of {len(answers)} folders")
