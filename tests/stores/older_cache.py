"""Documents of the older API cache, for tests."""

import base64
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

CREATED = 1_700_000_000_000
BODY = b'{"amount": 1}'
HASH = sha256(BODY).hexdigest()
ANSWER = b'{"id": "re_1"}'


def entry(state: object = "completed", **changes: Any) -> dict[str, Any]:
    """An entry as the older cache writes it."""
    plain = {
        "created_at_unix_nano": CREATED * 1_000_000,
        "updated_at_unix_nano": (CREATED + 5) * 1_000_000,
        "req_hash_hex": HASH,
        "state": state,
        "status": 201,
        "body_base64": base64.b64encode(ANSWER).decode(),
    }
    return {**plain, **changes}


def put(path: Path, **entries: object) -> None:
    """Write a document of the older cache. In the names, two underscores stand for a colon."""
    named = {name.replace("__", ":"): value for name, value in entries.items()}
    path.write_text(json.dumps({"entries": named}))


def entries_in(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())["entries"]
    return found
