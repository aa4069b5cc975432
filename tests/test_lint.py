"""The house rules, checked: lint, format, types, import contracts, topics as the table says, plain files."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from schemas import topics

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("schemas", "native", "producers", "streams", "actuators", "grafana", "fabrictime")
BIN = Path(sys.executable).parent

# One worker runs them all: they share caches and would only get in each other's way.
pytestmark = pytest.mark.xdist_group("lint")


def tracked(*suffixes):
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip(f"not a git checkout: {listed.stderr.strip()}")
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    return [path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes)]


def sources():
    return [path for path in tracked(".py") if path.relative_to(ROOT).parts[0] in PACKAGES]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "check", "--no-cache"], id="ruff"),
        pytest.param(["ruff", "format", "--check", "--no-cache"], id="format"),
        pytest.param(
            ["mypy"],
            id="mypy",
            marks=pytest.mark.slow("checks the types of 900 files; make lint does it too"),
        ),
        pytest.param(["lint-imports", "--no-cache"], id="imports"),
    ],
)
def test_tool_reports_no_error(command):
    program = BIN / command[0]
    if not program.exists():
        pytest.skip(f"{command[0]} is not installed beside {sys.executable}")
    done = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "warning" not in done.stderr.lower(), done.stderr


def test_c_is_formatted():
    program = BIN / "clang-format"
    if not program.exists():
        pytest.skip(f"clang-format is not installed beside {sys.executable}")
    files = [
        path
        for path in tracked(".c", ".h")
        if path.relative_to(ROOT).parts[0] in ("native", "clients", "tests")
    ]
    done = subprocess.run(
        [program, "--dry-run", "-Werror", *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


SERVICES = {
    "prober": ("producers/",),
    "map": ("streams/delays/stage.py",),
    "solve": (
        "streams/clock/stage.py",
        "streams/links/stage.py",
        "streams/links/schedule/stage.py",
        "streams/alerts/stage.py",
        "streams/queues/stage.py",
        "streams/contention/stage.py",
        "streams/diagnosis/inputs.py",
        "streams/diagnosis/stage.py",
        "streams/policy/",
    ),
    "sink": ("streams/history/stage.py", "streams/history/rows.py", "schemas/tables.py"),
    "up": (
        "fabrictime/state/live_figures.py",
        "fabrictime/commands/views/topology.py",
        "fabrictime/commands/views/links.py",
        "fabrictime/commands/views/actions.py",
        "fabrictime/commands/views/explain.py",
        "fabrictime/commands/jobs/records.py",
        "fabrictime/commands/jobs/export.py",
        "fabrictime/commands/replay/run.py",
    ),
    "web": ("fabrictime/web/", "fabrictime/state/fabric_consumer.py"),
    "flows": ("producers/flows/service.py", "producers/trace/flow_routes.py"),
    "collectives": ("producers/collectives/service.py",),
    "auditor": ("producers/audit/",),
    "audit": ("fabrictime/audit/",),
    "drains": ("actuators/nodes/",),
    "sim": ("producers/sim/",),
    "config": ("fabrictime/commands/config/live_config.py", "fabrictime/commands/config/pause.py"),
    "bench": (),
    "actuator": ("actuators/",),
    "notify": ("actuators/notify/",),
    "alert": ("fabrictime/commands/alert/",),
}
"""The services that `topics.py` names, and the files that open their topics."""

SHARED_FILES = (
    "streams/runtime/",
    "streams/runtime/live_config.py",
    "streams/runtime/route_table.py",
    "streams/runtime/flow_table.py",
)
"""Files that open topics for both stages of a worker: lookups, rejects."""


UNREAD = {topics.TRUTH.name}
"""Topics that no service reads: they are for benches and people, or their reader is yet to come."""

COUNTED_ONLY = {"solve": {topics.PROBES.name}}
"""Topics that a service asks the number of partitions of, and does not read."""

OF_ALL = {topics.SCHEMAS.name}
"""Topics that each service may read, and that are none of the contract's table."""


def constants_used(prefixes, but=()):
    """The topic constants that files name: `TOPIC` imported from schemas.topics, or `topics.TOPIC`."""
    names = {name for name in vars(topics) if isinstance(getattr(topics, name), topics.Topic)}
    used = set()
    for path in sources():
        name = str(path.relative_to(ROOT))
        if not name.startswith(prefixes) or name.startswith(but):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "schemas.topics":
                used |= {alias.name for alias in node.names} & names
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in names:
                used.add(node.attr) if node.value.id == "topics" else None
    return {getattr(topics, name).name for name in used}


@pytest.mark.parametrize("service", SERVICES)
def test_service_opens_the_topics_of_the_table(service):
    listed_topics = {t.name for t in topics.TOPICS.values() if service in t.writers or service in t.readers}
    but = (
        SERVICES["flows"] + SERVICES["collectives"] + SERVICES["auditor"] + SERVICES["sim"]
        if service == "prober"
        else SERVICES["notify"] + SERVICES["drains"]
        if service == "actuator"
        else ()
    )
    opened = constants_used(SERVICES[service], but) - COUNTED_ONLY.get(service, set()) - OF_ALL
    shared = constants_used(SHARED_FILES) if service in ("map", "solve") else set()
    assert opened <= listed_topics, f"{service} opens {opened - listed_topics}, which topics.py does not list"
    assert listed_topics - UNREAD <= opened | shared, (
        f"topics.py lists for {service} {listed_topics - opened - shared}, which it does not open"
    )


def test_topics_are_opened_by_constant():
    """A topic's name as a literal would slip past the comparison above."""
    literal = re.compile(r"""(?<!error\()(?<!warning\()["']fabric\.[a-z][a-z.-]*["']""")  # no id of a check
    known = {f'"{name}"' for name in topics.TOPICS} | {f"'{name}'" for name in topics.TOPICS}
    found = [
        f"{path.relative_to(ROOT)}: {match}"
        for path in sources()
        if path.relative_to(ROOT) != Path("schemas/topics.py")
        for match in literal.findall(path.read_text())
        if match in known
    ]
    assert not found


def test_every_service_of_the_table_is_known():
    named = {name for topic in topics.TOPICS.values() for name in (*topic.writers, *topic.readers)}
    assert named == set(SERVICES)


def test_every_module_has_a_short_docstring():
    wrong = []
    for path in sources():
        start = re.match(r'(?:#.*\n)*"""(.+?)"""', path.read_text(), re.DOTALL)
        lines = len(start[1].strip().splitlines()) if start else 0
        if not 1 <= lines <= 20:
            wrong.append(f"{path.relative_to(ROOT)}: {lines} lines")
    assert not wrong, "expected a module docstring of 1 to 20 lines"


def test_no_file_names_a_machine_or_a_registry():
    paths = re.compile(rf"{'/wo'}{'rk/'}|{'/ho'}{'me/'}[a-z]|{'/tm'}{'p/wt'}")
    hosts = re.compile(r"https?://[^\s\"')]*(?:index|simple|pypi|mirror|proxy)[^\s\"')]*", re.IGNORECASE)
    found = []
    for path in tracked():
        if path.suffix in (".png", ".ico"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {match}" for match in paths.findall(text)]
    lock = (ROOT / "requirements.lock").read_text()
    found += [f"requirements.lock: {match}" for match in hosts.findall(lock)]
    found += [
        f"requirements.lock: {line}"
        for line in lock.splitlines()
        if line.startswith(("-i ", "--index", "--extra-index", "--find"))
    ]
    assert not found
