"""What a guard lets its store keep and its observer see: keys that seal, compression, hashed keys, a redactor."""

from __future__ import annotations

import base64
import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from notwice.codec import Cipher, seal, unseal
from notwice.errors import not_installed
from notwice.model import Record, Unreadable
from notwice.policy import suggesting
from notwice.redaction import REDACTED, Redactor

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
KEYS_VARIABLE: Final = "NOTWICE_SEAL_KEYS"
KEYS_FILE_VARIABLE: Final = "NOTWICE_SEAL_KEYS_FILE"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,40}")
_SEPARATORS = re.compile(r"[\s,]+")


class _Aead(Protocol):
    """An authenticated cipher, as `cryptography` has them."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes) -> bytes: ...


class _AesGcm(NamedTuple):
    """AES-256-GCM with a random nonce before each box (NIST SP 800-38D)."""

    name: str
    aead: _Aead

    def __repr__(self) -> str:
        return f"<key {self.name!r}>"

    def encrypt(self, content: bytes, bound: bytes) -> bytes:
        """Give a new nonce, and `content` encrypted and authenticated."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self.aead.encrypt(nonce, content, bound)

    def decrypt(self, sealed: bytes, bound: bytes) -> bytes:
        """Give what was encrypted. Raises `ValueError` if it is not what it was."""
        try:
            return self.aead.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound)
        except Exception as error:  # of the library's own kind, which is known only where it is installed
            raise ValueError("it does not open") from error


@suggesting
@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """What a guard lets its store keep, and its observer see.

    keys: texts ``name:secret``, as `new_key` and ``notwice key`` make them. The first one seals what is written, all of
        them open what is read. Sealed are results, steps and their data, stored requests and the texts of errors:
        encrypted by AES-256-GCM, and bound to the operation. None: they lie in the open.
    compress_above_bytes: a record with anything private in it is compressed if it is longer; ``None``: never.
    hash_keys: whether the record holds the operation id in the place of the caller's key. `Operation.key` is then the
        operation id, too, and downstream keys are derived from that. What was begun before goes on as it was begun.
    redact: what is told of a handler's value in its place, to observers. See `redacting`.

    A guard that meets a record whose key it was not given refuses it with `UnsupportedRecord`, and never takes it for
    absent. To change keys: give the new one last, to all processes; then first; and take the old one away when no
    record is kept that it sealed. Needs the extra ``privacy`` where `keys` are given.

    Raises `ValueError` or `TypeError` with a sentence that holds no secret, or `ImportError` that names the extra.
    """

    keys: Sequence[str] = dataclasses.field(default=(), repr=False)
    compress_above_bytes: int | None = None
    hash_keys: bool = False
    redact: Redactor | None = None
    ciphers: Mapping[str, Cipher] = dataclasses.field(init=False, repr=False, compare=False)
    first: Cipher | None = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Validate every field once, and make the ciphers."""
        if isinstance(cast("object", self.keys), str):
            message = "keys must be several texts `name:secret`, not one text"
            raise TypeError(message)
        _check_size(self.compress_above_bytes)
        if not isinstance(cast("object", self.hash_keys), bool):
            message = f"hash_keys must be True or False, not {self.hash_keys!r}"
            raise TypeError(message)
        if self.redact is not None and not callable(cast("object", self.redact)):
            message = "redact must be a function that is given a value and gives what may be shown of it"
            raise TypeError(message)
        ciphers = _ciphers(self.keys)
        object.__setattr__(self, "ciphers", ciphers)
        object.__setattr__(self, "first", next(iter(ciphers.values()), None))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **options: Any) -> Privacy:  # noqa: ANN401 - the fields, each of its own type
        """Make one with the keys of ``NOTWICE_SEAL_KEYS`` or of the file that ``NOTWICE_SEAL_KEYS_FILE`` names.

        They are separated by blanks, commas or new lines. `options` are the other fields. Raises `ValueError` where
        there are none, for a secret that one deployment forgot must not leave its records in the open; for keys that
        can't be used or are said twice, and for a file that can't be read.
        """
        keys = keys_of_environment(os.environ if environment is None else environment)
        if not keys:
            message = (
                f"neither {KEYS_VARIABLE} nor {KEYS_FILE_VARIABLE} gives a key that seals, and without any all would "
                "lie in the open: set one. Where nothing is to be sealed, leave privacy out, or say Privacy(...)"
            )
            raise ValueError(message)
        return cls(keys=keys, **options)

    def shown(self, value: object) -> object:
        """What an observer is told of a handler's value; nothing, if the redactor fails at it."""
        if self.redact is None:
            return value
        try:
            return self.redact(value)
        except Exception:  # noqa: BLE001 - whatever it raises, nothing may slip through
            return REDACTED

    def seal(self, record: Record) -> Record:
        """The record with what is private in it sealed."""
        return seal(record, self.first, compress_above_bytes=self.compress_above_bytes)

    def unseal(self, record: Record) -> Record | Unreadable:
        """The record opened; still sealed without its key, `Unreadable` if it does not open."""
        return unseal(record, self.ciphers)


def new_key(name: str) -> str:
    """Make a key ``name:secret`` with 256 bits from the system's random source. Keep it where secrets are kept.

    `name` stands in the open in each record: 1 to 40 letters, digits, dots, dashes and underscores, like ``2027-01``.
    """
    _check_name(name)
    return f"{name}:{base64.urlsafe_b64encode(os.urandom(KEY_BYTES)).decode()}"


def keys_of_environment(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that the environment gives; none where neither of its variables is set, or both are empty.

    Raises `ValueError` where both say something, for a text or a file without a key, and for one that can't be read.
    """
    text, path = environment.get(KEYS_VARIABLE, ""), environment.get(KEYS_FILE_VARIABLE, "")
    if text and path:
        message = f"say the keys that seal either by {KEYS_VARIABLE} or by {KEYS_FILE_VARIABLE}, not by both"
        raise ValueError(message)
    if path:
        return keys_in(_file(path), f"the file {path}, which {KEYS_FILE_VARIABLE} names,")
    return keys_in(text, KEYS_VARIABLE) if text else ()


def keys_in(text: str, place: str) -> tuple[str, ...]:
    """The keys in a text or a file: separated by blanks, commas or new lines.

    Raises `ValueError` if there are none, which names the `place` where they were looked for.
    """
    keys = tuple(part for part in _SEPARATORS.split(text) if part)
    if not keys:
        message = f"{place} holds no key that seals; write name:secret, as `notwice key` prints it"
        raise ValueError(message)
    return keys


def _file(path: str) -> str:
    try:
        return Path(path).read_text("ascii")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it holds other characters than keys have"
        message = f"{KEYS_FILE_VARIABLE} names {path}, which can't be read: {why}"
        raise ValueError(message) from error


def _check_size(size: object) -> None:
    if size is None or (isinstance(size, int) and not isinstance(size, bool) and size >= 0):
        return
    message = f"compress_above_bytes must be a whole number from 0 on, or None, not {size!r}"
    raise ValueError(message)


# -- keys


def _ciphers(keys: Sequence[str]) -> dict[str, Cipher]:
    ciphers: dict[str, Cipher] = {}
    for place, text in enumerate(keys, start=1):
        name, _, secret = str(text).partition(":")
        if not secret:
            message = f"key {place} that seals has no name: write it as name:secret, as `notwice key` prints it"
            raise ValueError(message)
        _check_name(name)
        if name in ciphers:
            message = f"two keys that seal have the name {name!r}; give each a name of its own"
            raise ValueError(message)
        ciphers[name] = _AesGcm(name, _aes_gcm(_secret_bytes(name, secret)))
    return ciphers


def _secret_bytes(name: str, secret: str) -> bytes:
    try:
        found = base64.b64decode(secret.replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        found = b""
    if len(found) != KEY_BYTES:
        message = f"the key {name!r} that seals must be {KEY_BYTES} bytes in base64, as `notwice key` makes them"
        raise ValueError(message)
    return found


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        message = "a key that seals is named by 1 to 40 letters, digits, dots, dashes and underscores, before its colon"
        raise ValueError(message)


def _aes_gcm(secret: bytes) -> _Aead:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - it needs the extra
    except ModuleNotFoundError as error:
        raise ImportError(not_installed("keys that seal need cryptography", "privacy"), name=error.name) from error
    return cast("_Aead", AESGCM(secret))


NOTHING_HIDDEN: Final = Privacy()
