"""Measures whether an unauthorised client acts or reads: real services, attacked over each interface.

An attempt is accepted if it has an effect without permission: an answer of the page, a change, a record that
the actuator believes, an answer of a responder, a command that a socket takes. Each interface also serves one
authorised caller, so that a service that is merely down counts as a failure of the bench.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._pipeline import embedded_log
from fabrictime.bench._waiting import wait_for
from fabrictime.bench.operate import _host_attacks, _log_attacks, _page_attacks
from schemas.run_module import module_command
from schemas.secret_file import write_secret
from schemas.signing import new_key

START_S: Final = 120.0
HOST: Final = "h1"
TOKENS: Final = {role: f"{role}-token-of-the-bench-0123456789" for role in ("look", "configure", "act")}


def measure(progress: Progress, quick: bool) -> dict[str, Value]:
    """Return the numbers of unauthorised attempts, and of accepted ones among them."""
    attempts: Counter[str] = Counter()
    accepted: list[str] = []
    with tempfile.TemporaryDirectory(prefix="fabrictime-security-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        log = stack.enter_context(embedded_log(folder, partitions=2))
        settings = _settings(folder, log)
        stack.enter_context(_service(folder, settings, "web", folder / "page.port"))
        stack.enter_context(_service(folder, settings, "act", folder / "data" / "run" / "control.sock"))
        page = f"http://127.0.0.1:{(folder / 'page.port').read_text().strip()}"
        for attacks in (
            _page_attacks.attack(page, TOKENS, folder / "users"),
            _host_attacks.attack(folder),
            _log_attacks.attack(log, folder, HOST),
        ):
            for interface, attempt, is_accepted in attacks:
                attempts[interface] += 1
                if is_accepted:
                    accepted.append(f"{interface}: {attempt}")
                    progress(f"accepted: {interface}: {attempt}")
        progress(", ".join(f"{interface} {count}" for interface, count in attempts.items()))
        _find_secrets(folder)
    text = "; ".join(accepted[:5]) or ", ".join(f"{name} {count}" for name, count in attempts.items())
    return {
        "unauthorised_accepted": Figure(len(accepted), "attempts", text),
        "unauthorised_attempts": attempts.total(),
    }


def _settings(folder: Path, log: str) -> Path:
    """Write the settings, users and keys of all services; return the settings' path."""
    public = new_key(folder / "signing.key")
    write_secret(folder / "users", "".join(f"{role}er {role} {TOKENS[role]}\n" for role in TOKENS).encode())
    path = folder / "fabrictime.toml"
    path.write_text(
        f'[up]\nlog_url = "{log}"\nhost_name = "{HOST}"\ndata_directory = "{folder / "data"}"\n'
        f'[control]\nrequire_signature = true\naccepted_keys_file = "{public}"\n'
        "[metrics]\nenabled = false\n[actuators]\nsettle_ms = 0\n"
        f'[web]\nport = 0\nport_file = "{folder / "page.port"}"\n'
        f'history_url = "http://127.0.0.1:9"\nlogin.users_file = "{folder / "users"}"\n'
        'login.proxies = ["192.0.2.1"]\nlogin.hosts = ["page.example"]\n',
        encoding="utf-8",
    )
    return path


@contextlib.contextmanager
def _service(folder: Path, settings: Path, name: str, sign: Path) -> Iterator[None]:
    """Run a service, which is ready once the file `sign` exists. Raises RuntimeError."""
    output = folder / f"{name}.out"
    with output.open("w") as file:
        process = subprocess.Popen(
            module_command("fabrictime", "service", name, "--config", str(settings)),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: process.poll() is not None or sign.exists(), START_S)
        if not sign.exists():
            raise RuntimeError(f"{name}: not ready: {output.read_text()[-500:]}")
        yield
    finally:
        process.terminate()
        process.wait(30)


def _find_secrets(folder: Path) -> None:
    """Raise RuntimeError if the output of a service contains a secret of this run."""
    secrets = {token.encode() for token in TOKENS.values()}
    secrets |= set((folder / "signing.key").read_bytes().splitlines()[1:-1])
    for path in (*folder.glob("*.out"), *folder.glob("*.log")):
        if path.is_file() and any(secret in path.read_bytes() for secret in secrets):
            raise RuntimeError(f"{path.name}: contains a secret of this run")
