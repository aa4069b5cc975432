"""Signs and verifies the records that make actuators act: decisions, fallbacks and config.

The signer fills the field `signature` with its key's id and an Ed25519 signature (RFC 8032) of topic, key,
the SHA-256 digest of the schema, and all other fields. A verifier accepts several public keys, so that keys
change without a gap: add the new public key everywhere, change the signing key, run `fabrictime config sign`,
remove the old public key.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from pydantic import Field, model_validator

from schemas import codec
from schemas.input_error import InputError
from schemas.secret_file import read_secret, stamp, write_secret
from schemas.strict_model import StrictModel
from schemas.topics import CONFIG, DECISIONS, FALLBACKS, Topic

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from schemas.kafka.message import Message

SIGNED: Final[Mapping[str, Topic[Any]]] = {topic.name: topic for topic in (DECISIONS, FALLBACKS, CONFIG)}
"""Topics with signed records. Their record has the field `signature`."""
ID_BYTES: Final = 8
_PEM: Final = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)

_log = logging.getLogger(__name__)

R = TypeVar("R", bound=Mapping[str, Any])


class ControlSettings(StrictModel):
    """How records that make actuators act are signed and checked."""

    require_signature: bool = Field(
        default=False,
        description="whether decisions, fallbacks and config without a valid signature are refused",
    )
    accepted_keys_file: Path | None = Field(
        default=None,
        description="public keys (PEM, one after another) whose signatures count; read again after a change",
    )
    signing_key_file: Path | None = Field(
        default=None,
        description="owner-only private key (PEM, Ed25519) of policy workers and of the command line; "
        "`fabrictime config new-key` makes one",
    )

    @model_validator(mode="after")
    def _complete(self) -> ControlSettings:
        if self.require_signature and self.accepted_keys_file is None:
            raise ValueError("require_signature: expected accepted_keys_file as well")
        return self

    def verifier(self) -> Verifier | None:
        """Return the signature verifier; None if no signature is required. Raises ValueError for bad keys."""
        if not self.require_signature or self.accepted_keys_file is None:
            return None
        return Verifier(self.accepted_keys_file)

    def signer(self) -> Signer | None:
        """Return the signer of records; None without a signing key. Raises ValueError for an unusable key."""
        return None if self.signing_key_file is None else Signer(self.signing_key_file)


NO_CONTROL: Final = ControlSettings()


def key_id(public: Ed25519PublicKey) -> bytes:
    """Return the id of a public key: the first 8 bytes of the SHA-256 of its 32 bytes."""
    return hashlib.sha256(public.public_bytes_raw()).digest()[:ID_BYTES]


class Signer:
    """Signs records with one private key."""

    def __init__(self, path: Path) -> None:
        """Read the private key. Raises ValueError with one line that contains no secret."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(read_secret(path, "control.signing_key_file", "a key (PEM)"), None)
        except TypeError:  # an encrypted key
            raise InputError(f"control.signing_key_file {path}: expected a key without a password") from None
        except ValueError as error:
            text = str(error) if str(path) in str(error) else f"control.signing_key_file {path}: no key (PEM)"
            raise InputError(text) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise InputError(f"control.signing_key_file {path}: expected an Ed25519 key")
        self._key: Ed25519PrivateKey = key

    @cached_property
    def key_id(self) -> bytes:
        """The id of the signing key."""
        return key_id(self._key.public_key())

    def signed(self, topic: Topic[Any], key: str, record: R) -> R:
        """Return a copy of a record with its signature. Raises ValueError if it does not fit its schema."""
        plain: Any = {**record, "signature": b""}
        body, _ = codec.split_signature(codec.encode(topic.record, plain), topic.record)
        plain["signature"] = self.signature(topic, key, body)
        return cast("R", plain)

    def signature(self, topic: Topic[Any], key: str, part: bytes) -> bytes:
        """Return the field `signature` for a signed part of `codec.split_signature`."""
        return self.key_id + self._key.sign(_text(topic.name, key.encode(), part))


class Verifier:
    """Checks messages of the signed topics.

    It refuses a config or fallbacks record older than one accepted before. Epochs protect decisions.
    """

    def __init__(self, path: Path) -> None:
        """Read the accepted public keys. Raises ValueError."""
        self._path, self._stamp = path, stamp(path)
        self._keys = _load(path)
        self.newest: dict[str, tuple[int, int]] = {}
        """Order of the newest accepted record by topic and key."""

    def _current(self) -> Mapping[bytes, Ed25519PublicKey]:
        """Return the accepted keys. If the file changed and cannot be used, return the keys read before."""
        present = stamp(self._path)
        if present not in (self._stamp, None):
            self._stamp = present
            try:
                self._keys = _load(self._path)
            except ValueError as error:
                _log.warning("%s; the keys before the change stay", error)
        return self._keys

    def check(self, message: Message, registry: codec.Registry | None = None) -> None:
        """Check a message of any topic. Raises BadRecord: FORGED (bad signature), REPLAYED (old record)."""
        from cryptography.exceptions import InvalidSignature

        topic = SIGNED.get(message.topic)
        if topic is None:
            return
        if message.value is None:
            raise codec.BadRecord("FORGED", f"{message.topic}: a tombstone, which carries no signature")
        name = topic.record
        record = message.decoded(topic, registry)
        body, signature = codec.split_signature(message.value, name, registry)
        key = self._current().get(signature[:ID_BYTES])
        if key is None:
            reason = f"key {signature[:ID_BYTES].hex()} is not accepted" if signature else "no signature"
            raise codec.BadRecord("FORGED", f"{name}: {reason}")
        try:
            key.verify(signature[ID_BYTES:], _text(message.topic, message.key_bytes or b"", body))
        except InvalidSignature:
            raise codec.BadRecord("FORGED", f"{name}: the signature is not that of its content") from None
        self._check_order(topic, self.name_of(message), record)

    def accepts(self, message: Message, registry: codec.Registry | None = None) -> bool:
        """Return whether `check` accepts a message; log the reason if not."""
        try:
            self.check(message, registry)
        except codec.BadRecord as error:
            _log.warning("%s: %s", message.topic, error)
            return False
        return True

    @staticmethod
    def name_of(message: Message) -> str:
        """Return the key under which `newest` stores a message's order: the topic and the message's key."""
        return f"{message.topic} {message.key}"

    def _check_order(self, topic: Topic[Any], name: str, record: Any) -> None:
        """Store an accepted record's order. Raises BadRecord if a newer record was accepted before."""
        if topic is CONFIG:
            order = (record["at_ns"], 0)
        elif topic is FALLBACKS:
            name, order = f"{name} {record['shard']}", (record["epoch"], record["seq"])
        else:
            return
        newest = self.newest.get(name, order)
        if order < newest:
            raise codec.BadRecord("REPLAYED", f"{topic.record}: {order} after {newest}")
        self.newest[name] = order


def _load(path: Path) -> dict[bytes, Ed25519PublicKey]:
    """Return the public keys in a PEM file, by key id. Raises ValueError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    name = f"control.accepted_keys_file {path}"
    keys: dict[bytes, Ed25519PublicKey] = {}
    try:
        blocks = _PEM.findall(path.read_bytes())
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}, expected public keys (PEM)") from None
    for block in blocks:
        try:
            key = load_pem_public_key(block)
        except ValueError:
            raise InputError(f"{name}: key {len(keys) + 1}: expected an Ed25519 public key (PEM)") from None
        if not isinstance(key, Ed25519PublicKey):
            raise InputError(f"{name}: key {len(keys) + 1}: expected an Ed25519 public key (PEM)")
        keys[key_id(key)] = key
    if not keys:
        raise InputError(f"{name}: no public key (PEM)")
    return keys


def _text(topic: str, key: bytes, body: bytes) -> bytes:
    """Return the bytes to sign. Length prefixes keep bytes of one part from being read as another part."""
    parts = (b"fabrictime", topic.encode(), key, body)
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def new_key(path: Path) -> Path:
    """Write a private key, and its public key as `.pub`; return the public key's path. Raises OSError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = Ed25519PrivateKey.generate()
    write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = path.with_name(f"{path.name}.pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return public
