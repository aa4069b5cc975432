"""A RAS service as NCCL's documentation describes it, for tests: real TCP, any number of processes on one
port.

`python responder.py STATE` serves the job that the JSON file STATE describes, at NCCL_RAS_ADDR. The file is
read for each query: {"format": "json" or "text", "communicators": [{"hash", "size", "ranks",
"missing_ranks"}]}. In a rank, "pid": "self" stands for the responder's process id.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def rank(number: int, counts: dict[str, int] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a rank that runs, with NCCL's fields."""
    status = {
        "init_state": 0,
        "async_error": 0,
        "finalize_called": False,
        "destroy_flag": False,
        "abort_flag": False,
    }
    gpu = number % 8
    return {
        "rank": number,
        "host": "127.0.0.1",
        "pid": 4000 + number,
        "cuda_dev": gpu,
        "nvml_dev": gpu,
        "status": status | fields.pop("status", {}),
        "collective_counts": dict.fromkeys(FUNCTIONS, 0) | (counts or {}),
        **fields,
    }


def missing(number: int, *, unresponsive: bool = True, dead: bool = False, **fields: Any) -> dict[str, Any]:
    """Return a rank that did not answer."""
    status = {"unresponsive": unresponsive, "considered_dead": dead}
    place = {"host": "127.0.0.1", "pid": 4000 + number, "cuda_dev": number % 8, "nvml_dev": number % 8}
    return {"rank": number, **place, "status": status, **fields}


def communicator(name: str, ranks: list[Any], missing_ranks: list[Any] | None = None) -> dict[str, Any]:
    """Return a communicator of these ranks."""
    gone = missing_ranks or []
    return {
        "hash": name,
        "secondary_hash": "0x1:0x2",
        "size": len(ranks) + len(gone),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(gone),
        "ranks": ranks,
        "missing_ranks": gone,
    }


def json_report(communicators: list[Any]) -> str:
    """Return a report of NCCL 2.29."""
    content = {
        "nccl_version": "2.29.1",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-01-01 00:00:00",
        "communicators_count": len(communicators),
        "communicators": communicators,
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }
    return json.dumps(content, indent=2) + "\n"


def text_report(communicators: list[Any]) -> str:
    """Return a verbose report of NCCL 2.27: ranks are listed if they are outliers."""
    lines = ["NCCL version 2.27.3 compiled with CUDA 12.8", "", "Communicators... (0.00s)", "============="]
    lines += ["Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors"]
    lines += ["    #  in group  per comm  per node  per comm  in group"]
    for at, one in enumerate(communicators):
        error = "INCOMPLETE" if one["missing_ranks"] else "OK"
        size = one["size"]
        lines.append(f"{at:5d}  {1:8d}  {1:8d}  {size:8d}  {size:8d}  {size:8d}   RUNNING  {error}")
    lines += ["", "Errors", "======", ""]
    for state, key in (("INCOMPLETE", "unresponsive"), ("DEAD", "considered_dead")):
        gone = [one for group in communicators for one in group["missing_ranks"] if one["status"][key]]
        gone = [one for one in gone if key == "considered_dead" or not one["status"]["considered_dead"]]
        lines += [state, f"  {len(gone)} job processes"] if gone else []
        lines += [
            f"  Process {one['pid']} on node {one['host']} managing GPU {one['cuda_dev']}" for one in gone
        ]
        lines += [""] if gone else []
    for at, one in enumerate(communicators):
        if one["missing_ranks"]:
            lines += [f"#{at}-0 ({one['hash'][2:]:0>16}) INCOMPLETE", "  Missing communicator data"]
            lines += [f"  {_named(gone)}" for gone in one["missing_ranks"]]
    lines += ["", "Warnings", "========", ""]
    for at, one in enumerate(communicators):
        for function in FUNCTIONS:
            lines += _mismatch(at, one, function)
    return "\n".join(lines) + "\n"


def _named(one: dict[str, Any], text: str = "") -> str:
    place = f"GPU {one['cuda_dev']} managed by process {one['pid']} on node {one['host']}"
    return f"Rank {one['rank']}{text} -- {place}"


def _mismatch(at: int, one: dict[str, Any], function: str) -> list[str]:
    groups: dict[int, list[Any]] = {}
    for member in one["ranks"]:
        groups.setdefault(member["collective_counts"].get(function, 0), []).append(member)
    if len(groups) < 2:
        return []
    lines = [f"#{at}-0 ({one['hash'][2:]:0>16}) MISMATCH"]
    lines += [f"  Communicator ranks have different {function} operation counts"]
    for count, members in sorted(groups.items(), key=lambda group: -len(group[1])):
        text = f"launched up to operation {count}" if count else "not launched any operations"
        if len(members) > 1:
            lines.append(f"  {len(members)} ranks have {text}")
        if len(members) == 1:
            lines.append(f"  {_named(members[0], f' has {text}')}")
        elif len(members) < one["size"] / 2:
            lines += [f"  {_named(member)}" for member in members]
    return lines


class Service:
    """Serves the report of a state at an address, as one process of a job."""

    def __init__(self, state: Path, address: tuple[str, int]) -> None:
        self._state = state
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._listener.bind(address)
        self._listener.listen(64)

    @property
    def port(self) -> int:
        """The port at which it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def serve(self) -> None:
        """Answer clients until the process ends."""
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        is_json = False
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                command = line.decode().strip().lower()
                if command.startswith("client protocol"):
                    connection.sendall(b"SERVER PROTOCOL 2\n")
                elif command.startswith("timeout"):
                    connection.sendall(b"OK\n")
                elif command.startswith("set format"):
                    is_json = self._read()["format"] == "json"
                    connection.sendall(b"OK\n" if is_json else b"ERROR: Unknown command\n")
                elif command in ("status", "verbose status"):
                    connection.sendall(self._report(is_json=is_json).encode())
                    return

    def _read(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._state.read_text())
        return state

    def _report(self, *, is_json: bool) -> str:
        communicators = self._read()["communicators"]
        for one in communicators:
            for member in one["ranks"]:
                member["pid"] = os.getpid() if member["pid"] == "self" else member["pid"]
        return json_report(communicators) if is_json else text_report(communicators)


if __name__ == "__main__":
    host, _, port = os.environ["NCCL_RAS_ADDR"].rpartition(":")
    service = Service(Path(sys.argv[1]), (host.strip("[]"), int(port)))
    print(service.port, flush=True)
    service.serve()
