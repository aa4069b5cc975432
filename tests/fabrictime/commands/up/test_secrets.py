"""No output of a run contains a secret of that run."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fabrictime.bench.operate._up import Up
from schemas.secret_file import write_secret
from schemas.signing import new_key

TOKEN = "token-of-this-run-0123456789abcdef"


def secrets_of(folder: Path) -> dict[str, bytes]:
    """Return each secret of the run in each form that a program could print."""
    secrets = {"page token": TOKEN.encode()}
    for path in (*(folder / "data" / "secrets").iterdir(), folder / "signing.key"):
        content = path.read_bytes().strip()
        if b"PRIVATE KEY" in content:
            content = b"".join(content.splitlines()[1:-1])
        secrets[path.name] = content
        secrets[f"{path.name} in hexadecimal"] = content.hex().encode()
        secrets[f"{path.name} as text"] = repr(content)[2:-1].encode()
    return secrets


def request_by(url: str, token: str) -> urllib.request.Request:
    return urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})


@pytest.mark.slow("starts all services of a machine")
@pytest.mark.timeout(400)
def test_no_output_contains_a_secret(tmp_path: Path) -> None:
    public = new_key(tmp_path / "signing.key")
    write_secret(tmp_path / "users", f"alice act {TOKEN}\n".encode())
    config = (
        f'[web.login]\nusers_file = "{tmp_path / "users"}"\n'
        f'[control]\naccepted_keys_file = "{public}"\nrequire_signature = true\n'
        f'signing_key_file = "{tmp_path / "signing.key"}"\n'
    )
    with Up(tmp_path, "--fleet", "loopback", settings=config) as up:
        page = f"{up.addresses['web']}api/v1/health"
        with urllib.request.urlopen(request_by(page, TOKEN), timeout=60) as answer:
            assert "text" in json.load(answer)
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(request_by(page, "x" * 40), timeout=60)
        refused.value.close()
        state = json.dumps(up.state()) + up.scrape()
    outputs = {path: path.read_bytes() for path in (tmp_path / "data" / "run").rglob("*") if path.is_file()}
    outputs |= {path: path.read_bytes() for path in (tmp_path / "data").rglob("*.log") if path.is_file()}
    outputs[up.output] = up.output.read_bytes()
    outputs[Path("state and metrics")] = state.encode()
    secrets = secrets_of(tmp_path)
    assert len(secrets) >= 10
    assert len(outputs) >= 4
    leaks = [
        (str(path), name)
        for path, text in outputs.items()
        for name, secret in secrets.items()
        if secret in text
    ]
    assert leaks == []
