"""Compares the product of this tree with the product of another commit, by alternating runs.

The other tree is a git worktree in a temporary directory with a native build of its own. This tree's
`fabrictime/bench` replaces the bench of the other tree, so both products are measured alike, also by benches
newer than the other commit. Machines vary from hour to hour; the ratio of two adjacent runs does not.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fabrictime.bench import Progress, Report, Target, load
from fabrictime.bench._machine import machine
from fabrictime.bench._show import PIPED_COLUMNS, progress_of
from fabrictime.bench._waiting import end_child

ROOT: Final = Path(__file__).resolve().parents[2]
BENCHES: Final = "fabrictime/bench"
LOCK: Final = "requirements.lock"
STOP_S: Final = 60.0
"""How long a run may take to end its processes after the comparison was interrupted."""

Runs: TypeAlias = Mapping[str, Sequence[Mapping[str, Any]]]
"""The figures of each run, in the order of the pairs, by side: `ours` or `theirs`."""


def main(
    against: str,
    bench: str,
    parts: Sequence[str],
    *,
    pairs: int,
    quick: bool,
    as_json: bool,
    own_benches: bool = False,
    keep: Path | None = None,
) -> int:
    """Compare both trees and print the report; return the exit code: 1 if no figure could be compared.

    Raises ValueError for an unknown commit or a tree that cannot be built.
    """
    # as ^C: the runs end, and the worktree is removed
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with progress_of(f"compare {bench}", Console(stderr=True)) as progress:
        report = compare(
            against, bench, parts, progress, pairs=pairs, quick=quick, own_benches=own_benches, keep=keep
        )
    if as_json:
        print(json.dumps(report))
    else:
        _print(report)
    return 0 if any(figure["ratio"] is not None for figure in report["figures"].values()) else 1


def compare(
    against: str,
    bench: str,
    parts: Sequence[str],
    progress: Progress,
    *,
    pairs: int,
    quick: bool = False,
    own_benches: bool = False,
    keep: Path | None = None,
) -> Report:
    """Run a bench, or some of its parts, alternately on both trees; return a report of all ratios.

    With `own_benches` the other tree runs the benches of its own commit, which parts that call the product's
    functions need. `keep` is a folder in which the other tree stays, built, for the next comparison.
    """
    runs: dict[str, list[Mapping[str, Any]]] = {"ours": [], "theirs": []}
    with _other_tree(against, progress, keep) as other_tree:
        trees = {"ours": ROOT, "theirs": other_tree}
        if not own_benches:
            shutil.rmtree(other_tree / BENCHES)
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / BENCHES, other_tree / BENCHES, ignore=ignored)
        remark = _lock_remark(other_tree)
        if remark:
            progress(remark)
        for pair, side in order(pairs):

            def beside(line: str, pair: int = pair, side: str = side) -> None:
                progress(f"pair {pair + 1} of {pairs}, {side}: {line}")

            runs[side].append(_measured(trees[side], bench, parts, beside, quick=quick))
    targets: Mapping[str, Target] = getattr(load(bench), "RATIO_TARGETS", {})
    report = {
        "name": bench,
        "against": _git("rev-parse", "--short=12", against),
        "machine": machine(),
        "pairs": pairs,
        "figures": compared(runs, targets),
    }
    return report | ({"quick": True} if quick else {}) | ({"remark": remark} if remark else {})


def order(pairs: int) -> list[tuple[int, str]]:
    """Return (pair, side) of all runs in the order ABBA, so that a slowing machine favours neither side."""
    sides = ("ours", "theirs")
    return [(pair, side) for pair in range(pairs) for side in (sides if pair % 2 == 0 else sides[::-1])]


def compared(runs: Runs, targets: Mapping[str, Target]) -> dict[str, dict[str, Any]]:
    """Return each figure's ratios ours/theirs, one per pair, their median and range, and its values.

    A figure that one side never measured has a reason instead of ratios, such as `not there`.
    """
    keys = dict.fromkeys(key for side in runs.values() for figures in side for key in figures)
    return {key: _one_compared(key, runs, targets.get(key)) for key in keys}


def _one_compared(key: str, runs: Runs, target: Target | None) -> dict[str, Any]:
    rows = {side: [figures.get(key, {}) for figures in runs[side]] for side in ("ours", "theirs")}
    values = {side: [row.get("value") for row in side_rows] for side, side_rows in rows.items()}
    pairs = zip(values["ours"], values["theirs"], strict=True)
    ratios = [ours / other for ours, other in pairs if ours is not None and other]
    units = [row["unit"] for row in (*rows["ours"], *rows["theirs"]) if row.get("unit")]
    compared = {"unit": units[0] if units else None, **_spread(ratios), "ratios": ratios, **values}
    if target is not None:
        compared |= {"target": target.text(), "met": bool(ratios) and target.met(median(ratios))}
    else:
        compared |= {"target": None, "met": None}
    return compared if ratios else compared | {"reason": _why_not(rows, values)}


def _spread(ratios: Sequence[float]) -> dict[str, float | None]:
    if not ratios:
        return {"ratio": None, "min": None, "max": None}
    return {"ratio": median(ratios), "min": min(ratios), "max": max(ratios)}


def _why_not(rows: Mapping[str, Sequence[Mapping[str, Any]]], values: Mapping[str, Sequence[Any]]) -> str:
    for side, where in (("theirs", "not there"), ("ours", "not measured here")):
        if all(value is None for value in values[side]):
            reason = next((row["reason"] for row in rows[side] if row.get("reason")), None)
            return where if reason is None else f"{where}: {reason}"
    return "no pair has two values whose ratio exists"


def _measured(
    tree: Path, bench: str, parts: Sequence[str], progress: Progress, *, quick: bool
) -> Mapping[str, Any]:
    """Run a bench in a tree and return its figures. If the run fails, report that and return no figures."""
    command = [sys.executable, "-m", "fabrictime", "bench", bench, *parts, "--json"]
    command += ["--quick"] if quick else []
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = os.pathsep.join([str(tree), str(tree / "clients" / "python")])
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(
            command, cwd=tree, env=env, stdout=output, stderr=subprocess.PIPE, start_new_session=True
        ) as run:
            try:
                last = _forwarded(run, progress)
                code = run.wait()
            finally:
                if run.poll() is None:
                    end_child(run, signal.SIGTERM, STOP_S)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    if code:
        progress(f"no figures, exit code {code}: {last}")
        return {}
    figures: Mapping[str, Any] = json.loads(text)["figures"]
    return figures


def _forwarded(run: subprocess.Popen[bytes], progress: Progress) -> str:
    """Forward the lines of a run's standard error to `progress`; return the last of them."""
    last = ""
    for line in run.stderr or ():
        text = line.decode("utf-8", "replace").strip()
        if text:
            last = text
            progress(text.partition(": ")[2] or text)
    return last


@contextmanager
def _other_tree(against: str, progress: Progress, keep: Path | None) -> Iterator[Path]:
    """Make a worktree of a commit and build it there; remove it at the end unless it is kept."""
    commit = _git("rev-parse", "--verify", f"{against}^{{commit}}")
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fabrictime-compare-")))
        tree = folder.absolute() / commit[:12]
        if keep is None or not tree.exists():
            _git("worktree", "add", "--detach", str(tree), commit)
        else:
            _git("-C", str(tree), "checkout", "--quiet", "--force", commit)
        if keep is None:
            stack.callback(_git, "worktree", "remove", "--force", str(tree))
        progress(f"building {commit[:12]}")
        # build_native links an environment only where the tree contains it; this one contains none
        build = [sys.executable, "tools/build_native.py"]
        done = subprocess.run(build, cwd=tree, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise ValueError(f"{against}: cannot be built: {lines[-1] if lines else done.returncode}")
        yield tree


def _lock_remark(other_tree: Path) -> str:
    """Return a remark if the trees' lock files differ, as both run with this tree's packages; else ''."""
    if (other_tree / LOCK).read_bytes() == (ROOT / LOCK).read_bytes():
        return ""
    return f"{LOCK} differs: both trees run with the packages of this environment"


def _git(*arguments: str) -> str:
    """Run git in this checkout and return its output. Raises ValueError with git's error message."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ValueError(f"git {arguments[0]}: {lines[-1] if lines else f'ended with {done.returncode}'}")
    return done.stdout.strip()


def _print(report: Report) -> None:
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=PIPED_COLUMNS)
    measured_on = report["machine"]
    console.print(
        f"[bold]{report['name']}[/bold] over {report['against']}: {report['pairs']} pairs, "
        f"{measured_on['cpu']}, {measured_on['cores']} cores, load {measured_on['load_1min_at_start']}",
        highlight=False,
        soft_wrap=True,
    )
    if "remark" in report:
        console.print(report["remark"], highlight=False, soft_wrap=True)
    table = Table(box=None)
    for title in ("figure", "ratio", "min", "max", "ours", "theirs", "unit", "target", "met", "remark"):
        table.add_column(title, no_wrap=title != "remark")
    for key, figure in report["figures"].items():
        met = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}[figure["met"]]
        table.add_row(
            key,
            *(_number(figure[name], ".3f") for name in ("ratio", "min", "max")),
            _middle(figure["ours"]),
            _middle(figure["theirs"]),
            figure["unit"] or "",
            figure["target"] or "",
            met,
            escape(figure.get("reason", "")),
        )
    console.print(table)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _middle(values: Sequence[float | None]) -> str:
    """Return the median of one side's values as text, or '-' if it has none."""
    measured = [value for value in values if value is not None]
    return _number(median(measured), ",.4g") if measured else "-"
