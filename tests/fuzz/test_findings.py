"""What hostile input has found, each as the case that it is; the inputs themselves stand in the corpus."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import jwt
import pytest

from notwice.errors import UnsupportedRecord
from notwice.http.exchange import stored
from notwice.model import Query, Unreadable
from notwice.server import forwarding, principals
from notwice.server.durations import parse_duration, parse_size
from notwice.server.options import SettingsError
from notwice.server.settings import Settings
from notwice.stores import jsonfile, mysql, open_store, postgres
from notwice.stores.dynamodb import items
from notwice.stores.jsonfile.store import JsonFileStore
from notwice.stores.memory import MemoryStore
from notwice.stores.redis import rows
from notwice.stores.urls import parsed
from tests.fuzz.stored import NAME, RECORD

FORGED = (
    '[Infinity, "n", "i"]',
    '[1e999, "n", "i"]',
    '["5", "n", "i"]',
    '[123456789012345678901, "n", "i"]',
    "[" * 9999,
)


@pytest.mark.parametrize("place", FORGED)
def test_a_forged_cursor_is_refused_by_every_store_alike(place: str) -> None:
    """A cursor whose time is infinite, no number or beyond what engines count is no cursor: `ValueError`, at once."""
    cursor = base64.urlsafe_b64encode(place.encode()).decode()
    with pytest.raises(ValueError, match="not the cursor of a page"):
        MemoryStore().scan(Query(cursor=cursor))


@pytest.mark.parametrize("member", [b"", b"x" * 20, b"0000000000000005\xff\0id", b" 5 n\0i", b"+000000000000005n\0i"])
def test_a_foreign_member_of_a_set_in_redis_does_not_stop_look_ups(member: bytes) -> None:
    """P7: what somebody else put among the open records is passed over; those that are ours are still listed."""
    assert rows.place_in(member) is None
    assert rows.place_in(rows.index_member((5, *NAME))) == (5, *NAME)


@pytest.mark.parametrize("damaged", [None, {"S": "1"}, {"N": "-1"}, {"N": "x"}, {"N": str(2**64)}, 5])
def test_an_item_with_a_damaged_time_does_not_stop_look_ups(damaged: Any) -> None:
    """P7: an item of DynamoDB whose time can't be read stands first in a scan, and the scan goes on."""
    item = {**items.item_of(RECORD, 3), "created_ms": damaged}
    assert items.place_in(item, NAME) == (0, *NAME)
    assert items.place_bytes(items.place_in(item, NAME))
    assert not isinstance(items.Kept.of(item, NAME).record, Unreadable)


@pytest.mark.parametrize("url", ["mysql://user:hunter2/db", "mysql://h:99999/db", "postgresql://user:hunter2/db"])
def test_a_password_in_the_place_of_a_port_is_not_repeated(url: str) -> None:
    """P15: a URL whose @ was forgotten is refused without its host; it is not shown as the store's name either."""
    engine: Any = mysql if url.startswith("mysql") else postgres
    with pytest.raises(ValueError, match="no port from 1 to 65535") as refused:
        engine.open_url(parsed(url))
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    "change", [{"method": 5}, {"scheme": None}, {"body": "text"}, {"client": {}}, {"form": 2}, {"root": 1}]
)
def test_a_stored_request_of_other_types_is_no_request(change: dict[str, Any]) -> None:
    """P14: a worker does not hand the application a method that is a number, or a body that is no bytes."""
    request: dict[str, Any] = {"form": 1, "method": "POST", "scheme": "http", "path": "/", "route": "/", "root": ""}
    request |= {"query": "", "headers": [], "left_out": [], "client": "h"}
    assert stored.restored({**request, "body": b""}).scope["method"] == "POST"
    with pytest.raises(UnsupportedRecord, match="no HTTP request of this release"):
        stored.restored({**request, "body": b"", **change})


@pytest.mark.parametrize("retention", ["inf", "nan", "-inf"])
def test_a_retention_that_is_no_number_is_refused(retention: str, tmp_path: Path) -> None:
    """A JSON file's retention of nan was taken for "for ever", and one of inf was an error without a sentence."""
    with pytest.raises(ValueError, match="retention must be a number of seconds"):
        open_store(f"file://{tmp_path}/cache.json?retention={retention}")
    assert jsonfile.JsonFileStore is JsonFileStore


@pytest.mark.parametrize("digits", ["9" * 16, "9" * 400, "1." + "0" * 400])
def test_a_number_of_many_digits_is_refused(digits: str) -> None:
    """A size of 400 digits was an `OverflowError` at the start of the gateway, and such a duration was infinite."""
    for parse, unit in ((parse_duration, "s"), (parse_duration, ""), (parse_size, ""), (parse_size, "MiB")):
        with pytest.raises(ValueError, match=r"is no (duration|size)"):
            parse(digits + unit)


UNKNOWN_KIND = """-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIDoZIzj0DAQcDQgAEJu/OvQ7p40pmkYfhizqRIrL3M5Rb
ZJzJ+fkh6fna2BKQI4venMe7Mw0VDGdwTdJa5wVSBXRLbzG/QHB0WHLQ5g==
-----END PUBLIC KEY-----
"""


NO_KEYS = ("[]", "null", "5", '{"keys": 5}', '{"keys": [{"kty": "RSA", "alg": []}]}', UNKNOWN_KIND)


@pytest.mark.parametrize("text", NO_KEYS)
def test_a_file_that_holds_no_keys_is_refused_with_a_sentence(text: str, tmp_path: Path) -> None:
    """JSON that is no key set, and a key of an unknown kind, are told as a wrong option, not as a traceback."""
    keys = tmp_path / "keys"
    keys.write_text(text)
    with pytest.raises(SettingsError, match="holds no usable public keys"):
        principals._keys(Settings(jwt_keys=str(keys)))


async def test_an_issuer_that_serves_no_keys_is_told_like_one_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """An issuer whose document is JSON of another form made every request an error; its callers are not known: 401."""

    async def fetched(url: str, *, timeout_s: float) -> bytes:
        return b'{"keys": [{"kty": "RSA", "alg": []}]}'

    keys = principals.FetchedKeySet("http://127.0.0.1:1/keys")
    monkeypatch.setattr(principals, "fetch", fetched)
    with pytest.raises(jwt.PyJWKClientConnectionError):
        await keys.key_for("token")


@pytest.mark.parametrize("listed", [[], [(b"connection", b"")], [(b"connection", b"close, ,")]])
def test_an_empty_member_of_a_list_of_connections_names_no_header(listed: list[tuple[bytes, bytes]]) -> None:
    """What a gateway passes on, the next one passes on, too: a list that names nothing takes nothing out."""
    assert forwarding.response_headers([*listed, (b"", b"1"), (b"x", b"2")], 200) == [(b"", b"1"), (b"x", b"2")]
