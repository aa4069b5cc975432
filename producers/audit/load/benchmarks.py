"""Parsers of what load programs print: perftest, nccl-tests, DCGM, fio, nvbandwidth, RVS, gpu-burn, GDRCopy.

Each raises ValueError for text without a result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

_ROW: Final = re.compile(r"^\s*\d+\s+\d+(?:\s+[\d.]+)+\s*$")
_BUS: Final = re.compile(r"#\s*Avg bus bandwidth\s*:\s*([\d.]+)")
_WRONG: Final = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)")
_BURN: Final = re.compile(r"GPU (\d+): (OK|FAULTY)")
_SUITE: Final = re.compile(r"\[RESULT\].*?\]\s*(.*?)\s+pass:\s*(TRUE|FALSE)", re.IGNORECASE)
_TOTALS: Final = re.compile(r"Total:\s*\d+,\s*Passed:\s*(\d+),\s*Failed:\s*(\d+)")


def perftest_figures(text: str) -> list[float]:
    """Return the numbers in the last row of perftest's output.

    They are bytes and iterations, then peak and average bandwidth, or latencies from minimum to average.
    """
    rows = [line for line in text.splitlines() if _ROW.match(line)]
    if not rows or len(rows[-1].split()) < 4:
        raise ValueError("perftest prints no row of results")
    return [float(part) for part in rows[-1].split()]


def bus_bandwidth(text: str) -> tuple[float, int]:
    """Return the average bus bandwidth in GB/s and the number of wrong values of nccl-tests."""
    bus, wrong = _BUS.search(text), _WRONG.search(text)
    if bus is None or wrong is None:
        raise ValueError("nccl-tests print no average bus bandwidth")
    return float(bus[1]), int(wrong[1])


def _tests(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, result) of each test at any depth of DCGM's JSON, whose nesting differs by version."""
    if isinstance(node, dict):
        if isinstance(node.get("results"), list):
            yield from ((str(node.get("name", "")), result) for result in node["results"])
        for value in node.values():
            yield from _tests(value)
    elif isinstance(node, list):
        for value in node:
            yield from _tests(value)


def diagnostic_outcomes(text: str) -> dict[str, str]:
    """Return the outcome of each test and GPU of `dcgmi diag --json`: pass, fail, warn or skip."""
    outcomes = {}
    for name, result in _tests(json.loads(text[text.find("{") :])):
        gpu = result.get("gpu_id", result.get("gpu_ids", result.get("entity_id", "")))
        outcomes[f"{name} {gpu}".strip()] = str(result["status"]).lower()
    if not outcomes:
        raise ValueError("dcgmi prints no test")
    return outcomes


def read_bandwidth(text: str) -> float:
    """Return the read bandwidth of fio's first job, bytes per second."""
    return float(json.loads(text)["jobs"][0]["read"]["bw_bytes"])


def copy_bandwidths(text: str) -> dict[str, float]:
    """Return the lowest bandwidth of each test of `nvbandwidth --json`, GB/s."""
    tests = json.loads(text)["nvbandwidth"]["testcases"]
    bandwidths = {str(test["name"]): float(test["min"]) for test in tests if "min" in test}
    if not bandwidths:
        raise ValueError("nvbandwidth prints no figure")
    return bandwidths


def suite_outcomes(text: str) -> dict[str, bool]:
    """Return, by name of the RVS test, whether the test passed."""
    outcomes: dict[str, bool] = {}
    for name, outcome in _SUITE.findall(text):
        outcomes[name] = outcomes.get(name, True) and outcome.upper() == "TRUE"
    if not outcomes:
        raise ValueError("RVS prints no result")
    return outcomes


def burn_outcomes(text: str) -> dict[str, bool]:
    """Return, by GPU, whether gpu-burn found all its computed values correct."""
    outcomes = {f"GPU {number}": outcome == "OK" for number, outcome in _BURN.findall(text)}
    if not outcomes:
        raise ValueError("gpu-burn prints no outcome")
    return outcomes


def gdrcopy_failures(text: str) -> tuple[int, int]:
    """Return the numbers of passed and of failed tests of `gdrcopy_sanity`."""
    totals = _TOTALS.search(text)
    if totals is None:
        raise ValueError("gdrcopy_sanity prints no total")
    return int(totals[1]), int(totals[2])
