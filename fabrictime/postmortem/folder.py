"""Reads all files of a folder that have a known format, within size limits, and lists damaged files."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Final, NamedTuple

from fabrictime.postmortem.observations import Observations
from fabrictime.postmortem.readers.chakra import read_chakra, read_chakra_json
from fabrictime.postmortem.readers.flight_recorder import MAX_BYTES as MAX_DUMP_BYTES
from fabrictime.postmortem.readers.flight_recorder import read_flight_recorder
from fabrictime.postmortem.readers.inspector import read_inspector
from fabrictime.postmortem.readers.kineto import read_kineto
from fabrictime.postmortem.readers.nccl_log import NcclLog
from fabrictime.postmortem.readers.nccl_tests import NcclTests
from fabrictime.postmortem.readers.python_log import PythonLog
from fabrictime.postmortem.readers.slurm import SlurmTable, read_slurm_json
from producers.collectives.flight_recorder import rank_of_name

FORMATS: Final = (
    "flight-recorder-json",
    "flight-recorder-pickle",
    "nccl-inspector",
    "nccl-debug-log",
    "nccl-tests",
    "kineto",
    "chakra",
    "slurm-accounting",
    "python-log",
)
MAX_FILES: Final = 8192
MAX_FILE_BYTES: Final = 1 << 30
"""Bytes of a file that are read, after decompression; a line of the report names files that are longer."""
MAX_JSON_BYTES: Final = 64 << 20
"""Largest JSON file that is read as one value; traces are read event by event."""
_HEAD_BYTES: Final = 256 << 10
_MAX_LINE: Final = 8192
_CHUNK: Final = 1 << 20
_RANK_FOLDER: Final = re.compile(r"(?:^|/)(?:attempt_\d+/|\d+/attempt_\d+/)(\d{1,7})/(?:stdout|stderr)")


class Reading(NamedTuple):
    """The facts from a folder, and the files from which they were read."""

    observations: Observations
    formats: Counter[str]
    unread: list[tuple[str, str]]


class _Unknown(ValueError):
    """The file has no known format."""


@dataclass(slots=True)
class _Reader:
    out: Observations = field(default_factory=Observations)
    formats: Counter[str] = field(default_factory=Counter)
    hosts_of_folders: dict[int, str] = field(default_factory=dict)
    log: NcclLog = field(init=False)

    def __post_init__(self) -> None:
        self.log = NcclLog(self.out)


def read_folder(folder: Path) -> Reading:
    """Return the facts from a folder's files. Raises OSError if the folder cannot be listed."""
    reader = _Reader()
    unread: list[tuple[str, str]] = []
    os.listdir(folder)
    for number, path in enumerate(_paths(folder)):
        name = str(path.relative_to(folder))
        if number >= MAX_FILES:
            unread.append((name, f"more than {MAX_FILES:,} files in the folder"))
            break
        try:
            _read_file(reader, path, name)
        except (ValueError, OSError, EOFError, zlib.error, RecursionError, MemoryError) as error:
            unread.append((name, _reason(error)))
            if isinstance(error, ValueError) and not isinstance(error, _Unknown):
                _note_torn(reader.out, path.name, _reason(error))
    reader.log.finish()
    _add_folder_hosts(reader)
    return Reading(reader.out, reader.formats, unread)


def _paths(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder, ordered by name. Symbolic links are not followed."""
    for directory, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__


def _note_torn(out: Observations, name: str, reason: str) -> None:
    rank = rank_of_name(name)
    if rank is not None and "rank" in name.lower() and "trace" not in out.torn_ranks.get(rank, ""):
        out.torn_ranks[rank] = reason


def _read_file(reader: _Reader, path: Path, name: str) -> None:
    """Read a file in its head's format. Raises ValueError for an unknown format or a damaged file."""
    size = path.stat().st_size
    if not size:
        raise _Unknown("empty")
    with _opened(path) as file:
        head = file.peek(_HEAD_BYTES)[:_HEAD_BYTES] or b""
        if len(head) < _HEAD_BYTES:
            head = file.read(_HEAD_BYTES)
            file.seek(0)
        start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        if head[:1] == b"\x80" or start[:2] in (b"(d", b"(l", b"}q"):
            _read_dump(reader, path, name, _whole(file, MAX_DUMP_BYTES), "flight-recorder-pickle")
        elif start[:1] in (b"{", b"["):
            _read_json(reader, path, name, file, head)
        elif path.name.endswith((".et", ".et.gz", ".chakra")):
            _read_chakra(reader, path.name, _whole(file, MAX_DUMP_BYTES))
        elif b"\0" in head[:4096]:
            raise _Unknown("no known form")
        else:
            _read_text(reader, name, file)


def _opened(path: Path) -> BufferedReader:
    file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    if file.peek(2)[:2] != b"\x1f\x8b":
        return file
    file.close()
    return BufferedReader(gzip.open(path, "rb"), _HEAD_BYTES)


def _whole(file: BufferedReader, limit: int) -> bytes:
    data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"larger than {limit >> 20} MiB, expected a smaller file")
    return data


def _read_dump(reader: _Reader, path: Path, name: str, data: bytes, form: str) -> None:
    rank = rank_of_name(path.name)
    if rank is None:
        raise ValueError("a dump without a rank in its name, expected such as nccl_trace_rank_7")
    read_flight_recorder(rank, data, reader.out)
    reader.formats[form] += 1
    parent = Path(name).parent.name
    if parent:
        reader.hosts_of_folders[rank] = parent


def _read_json(reader: _Reader, path: Path, name: str, file: BufferedReader, head: bytes) -> None:
    """Read a JSON file in the format that the names of its keys show."""
    form = next((form for form, keys in _KEYS if any(key in head for key in keys)), "")
    if _is_chakra_json(head):
        form = "chakra"
    out = reader.out
    if form == "nccl-inspector":
        read_inspector(path.name, _chunks(out, name, file), out)
    elif form == "kineto":
        read_kineto(path.name, _chunks(out, name, file), out)
    elif form == "chakra":
        read_chakra_json(path.name, _lines(out, name, file), out)
    elif form == "slurm-accounting":
        read_slurm_json(_whole(file, MAX_JSON_BYTES), out)
    elif form:
        _read_dump(reader, path, name, _whole(file, MAX_DUMP_BYTES), form)
        return
    elif head.lstrip()[:1] == b"[":
        _read_text(reader, name, file)
        return
    else:
        raise _Unknown("JSON of no known form")
    reader.formats[form] += 1


_KEYS: Final = (
    ("nccl-inspector", (b'"coll_perf"', b'"p2p_perf"', b'"inspector_output_format_version"')),
    ("kineto", (b'"traceEvents"', b'"schemaVersion"', b'"distributedInfo"')),
    ("chakra", (b'"COMM_COLL_NODE"', b'"GlobalMetadata"')),
    ("flight-recorder-json", (b'"entries"', b'"pg_config"', b'"pg_status"')),
    ("slurm-accounting", (b'"jobs"', b'"slurm"')),
)
"""Form of a JSON file by the keys in its head; the first that matches applies."""


def _is_chakra_json(head: bytes) -> bool:
    first = head[:2000]
    return b'"version"' in first and b'"attr"' in first and b'"entries"' not in first


def _read_chakra(reader: _Reader, name: str, data: bytes) -> None:
    read_chakra(name, data, reader.out)
    reader.formats["chakra"] += 1


def _read_text(reader: _Reader, name: str, file: BufferedReader) -> None:
    """Read a text file with all readers of lines, because logs of a job often mix several formats."""
    in_folder = _RANK_FOLDER.search(name)
    base = Path(name).name
    rank = int(in_folder[1]) if in_folder else rank_of_name(base) if "rank" in base.lower() else None
    python, tests, slurm = (
        PythonLog(reader.out, name, rank),
        NcclTests(reader.out, name),
        SlurmTable(reader.out),
    )
    forms: set[str] = set()
    for line in _lines(reader.out, name, file):
        if "NCCL_IB_HCA" in line:
            tests.take_setting(line)
        if reader.log.take(line):
            forms.add("nccl-debug-log")
        elif tests.take(line):
            forms.add("nccl-tests")
        elif slurm.take(line):
            forms.add("slurm-accounting")
        if python.take(line):
            forms.add("python-log")
    tests.finish()
    if not forms:
        raise _Unknown("no line of a known form")
    reader.formats.update(forms)


def _chunks(out: Observations, name: str, file: BufferedReader) -> Iterator[str]:
    """Yield the text of a file in chunks, at most `MAX_FILE_BYTES` in total."""
    total = 0
    while chunk := file.read(_CHUNK):
        total += len(chunk)
        if total > MAX_FILE_BYTES:
            out.notes.append(f"{name}: longer than {MAX_FILE_BYTES >> 20:,} MiB, the rest is not read")
            return
        yield chunk.decode("utf-8", "replace")


def _lines(out: Observations, name: str, file: BufferedReader) -> Iterator[str]:
    """Yield the lines of a file; a line beyond `_MAX_LINE` characters is cut."""
    rest = ""
    for chunk in _chunks(out, name, file):
        lines = (rest + chunk).split("\n")
        rest = lines.pop()[: 64 * _CHUNK]
        yield from (line[:_MAX_LINE] if len(line) > _MAX_LINE else line for line in lines)
    if rest:
        yield rest[:_MAX_LINE]


def _add_folder_hosts(reader: _Reader) -> None:
    """Take the names of folders as host names, if dumps lie in several folders of several names."""
    if len(set(reader.hosts_of_folders.values())) < 2:
        return
    for rank, host in reader.hosts_of_folders.items():
        if not re.fullmatch(r"(?:rank[_-]?)?\d+", host):
            reader.out.hosts.setdefault(rank, host)
