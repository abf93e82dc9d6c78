r"""Names of operations: scopes, keys, operation ids, downstream keys and business keys.

An operation is named by (namespace, scope, key). Scopes and keys may be given as text or as a tuple of parts, and two
different tuples never give one text: parts are joined by ``:``, and ``:`` and ``\`` inside a part are escaped. So
``("refund", "ord_123")`` is ``refund:ord_123``, and ``("a:b", "c")`` is not ``("a", "b:c")``.

What is missing is never a name. ``None``, an empty or a blank part, and a tuple that holds one, are refused with
`InvalidKey`: were they digested, all callers who forgot their key would share one operation. Values without a stable
text (floats, objects known only by their address) are refused with `EncodingError`.

Everything here is a pure function of its arguments and gives the same answer in every process and release.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from string import Formatter
from typing import Any, NamedTuple, cast
from uuid import UUID

from notwice.canonical import DEPTH_MAX, canonical_facts, fields_of, stable_text
from notwice.errors import EncodingError, InvalidKey

KEY_CHARACTERS_MAX = 255
SCOPE_CHARACTERS_MAX = 1024
NAMESPACE_CHARACTERS_MAX = 255

_ORDINARY = re.compile(r"[!-~][ -~]*").fullmatch  # what most names are, and nothing about it needs a longer look
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ESCAPED = re.compile(r"[:\\]")


def join_scope(scope: str | tuple[object, ...]) -> str:
    """Give the text of a scope: text as it is, a tuple's parts joined by ``:`` with their separators escaped.

    A part is text, an integer, a boolean, a Decimal, a UUID, a date, an aware datetime, or an Enum member with such a
    value. Raises `InvalidKey` if the scope or a part is missing or blank, has a control character or an unpaired
    surrogate, or is longer than `SCOPE_CHARACTERS_MAX` characters; `EncodingError` for a part without a stable text.
    """
    if type(scope) is str and len(scope) <= SCOPE_CHARACTERS_MAX and _ORDINARY(scope):
        return scope
    return _checked(scope if type(scope) is str else _joined(scope, "scope"), "scope", SCOPE_CHARACTERS_MAX)


def check_key(key: object) -> str:
    """Give the text of a caller's key: 1 to `KEY_CHARACTERS_MAX` characters; a tuple is joined as a scope is.

    A joined key that is longer is replaced by ``sha256:`` and the digest of it in hexadecimal: a business key of many
    facts must not fail by its length. Text that is longer is refused.
    Raises `InvalidKey` if the key or a part of it is missing or blank, or has a control character or an unpaired
    surrogate; `EncodingError` for a value without a stable text.
    """
    if type(key) is str:
        if len(key) <= KEY_CHARACTERS_MAX and _ORDINARY(key):
            return key
        return _checked(key, "key", KEY_CHARACTERS_MAX)
    if isinstance(key, bool):
        raise InvalidKey(
            "the key is a boolean, which two callers share at once; give text that names this one operation"
        )
    return _digested_if_long(_joined(key, "key"))


def check_namespace(namespace: str) -> str:
    """Give the namespace back. Raises `InvalidKey` if it is no text that can name one; the empty one may."""
    if namespace == "":
        return namespace
    return _checked(namespace, "namespace", NAMESPACE_CHARACTERS_MAX)


def operation_id(scope: str, key: str) -> str:
    """Give the operation's id: ``idem_`` and 128 bits of SHA-256, in hexadecimal. Both must have been checked."""
    return "idem_" + sha256(f"{scope}\0{key}".encode()).hexdigest()[:32]


def downstream_key(*, namespace: str, scope: str, key: str, generation: int, name: str) -> str:
    """Give the key that the next system is called with: 35 characters, the same at every attempt of one generation.

    It is a digest over the five values, each with its length, so that no two lists of values run into one another, and
    so that the next system learns nothing of the caller's own key.
    """
    return f"nw_{_downstream_digest(namespace, scope, key, generation, name).hex()}"


def downstream_uuid(*, namespace: str, scope: str, key: str, generation: int, name: str) -> UUID:
    """Give the same digest as a UUID, for systems that take only these.

    It is labelled as version 4 (RFC 9562, section 5.4), because systems that look at the version ask for that one.
    """
    return UUID(bytes=_downstream_digest(namespace, scope, key, generation, name), version=4)


def business_key(*facts: object, window: timedelta | None = None, at: datetime | None = None) -> str:
    """Derive a key from facts that are the same at every entry point of a flow and at every retry.

    ``business_key("charge", order_id)`` gives one key for ``7`` and ``"7"``: whatever has a stable text stands for it.
    Choose facts that identify what is meant, such as an order's id, and none that a retry changes. Two purchases that
    are both meant must differ in a fact.

    With `window` and `at`, facts in one window of that length have one key: for effects that may be repeated, but not
    too soon. Windows are counted from 1970 in UTC; two calls on either side of a border differ, however close they are.

    Raises `InvalidKey` if there are no facts, if one is missing or blank, or if only one of `window` and `at` (an aware
    datetime) is given; `EncodingError` for a fact without a stable form, floats and naive datetimes among them.
    """
    if not facts:
        raise InvalidKey("a business key needs facts, and none were given; give an id that stays the same at a retry")
    for place, fact in enumerate(facts, start=1):
        _refuse_missing(fact, f"fact {place} of the business key")
    return _business_digest(list(facts), window, at)


def business_key_of(
    source: object,
    *,
    include: Collection[str] | None = None,
    exclude: Collection[str] = (),
    window: timedelta | None = None,
    at: datetime | None = None,
) -> str:
    """Derive a business key from the named fields of a mapping, a dataclass or a pydantic model.

    `include` takes these fields and no others, each of which must be there. Without it all fields are taken but those
    in `exclude`, and a field whose name looks as if it changed at every try (``createdAt``, ``attempt_id``, ``nonce``)
    is refused: a key that changes guards nothing. Nested fields are named with dots: ``customer.id``.
    `window` and `at` are as in `business_key`.

    Raises `InvalidKey` if a field looks volatile, if an included one is missing or blank, or if nothing is left;
    `EncodingError` if `source` has no fields, or one of them no stable form.
    """
    if fields_of(source) is None:
        raise EncodingError(
            f"a value of type {type(source).__qualname__} has no named fields; "
            "give a mapping, a dataclass or a pydantic model, or call business_key with the facts themselves"
        )
    excluded = frozenset(exclude)
    if include is None:
        facts = _stable(source, "", excluded)
    else:
        facts = {path: _stable(_included(source, path), path, excluded) for path in include}
    if not facts:
        raise InvalidKey(
            "a business key needs facts, and no field is left; include a field that identifies what is meant"
        )
    return _business_digest(facts, window, at)


class Field(NamedTuple):
    """A field of a template: the value's name, and how to reach the wanted part of it, as written."""

    name: str
    steps: tuple[tuple[str, str], ...]  # ("." or "[", attribute's or item's name)
    written: str


def template_fields(template: str) -> tuple[str, ...]:
    """Give the names of the values that a template asks for, each once, in its order.

    Raises `InvalidKey` if the template is malformed, or if two of its fields have no ``:`` between them, so that
    different values could give one text.
    """
    return tuple(dict.fromkeys(part.name for part in _parsed(template) if isinstance(part, Field)))


def fill_scope(template: str, values: Mapping[str, object]) -> str:
    """Fill a template such as ``refund:{order.id}`` and give the scope, as `join_scope` does for a tuple.

    Each value is made text and escaped, so that values can't run into one another. A template that is one field and
    nothing else takes its value as it is. Raises `InvalidKey` and `EncodingError` as `join_scope` does, and
    `InvalidKey` for a field that `values` does not have.
    """
    parts = _parsed(template)
    if isinstance(parts[0], Field) and len(parts) == 1:
        return join_scope(cast("str | tuple[object, ...]", _value(parts[0], values)))
    return _checked(_filled(parts, values), "scope", SCOPE_CHARACTERS_MAX)


def fill_key(template: str, values: Mapping[str, object]) -> str:
    """Fill a template such as ``{key}`` or ``charge:{order_id}`` and give the key, as `check_key` does.

    What is said of `fill_scope` holds here; a missing or blank value is `InvalidKey`.
    """
    parts = _parsed(template)
    if isinstance(parts[0], Field) and len(parts) == 1:
        return check_key(_value(parts[0], values))
    return _digested_if_long(_filled(parts, values))


# --- texts ----------------------------------------------------------------------------------------------------------


def _checked(text: object, what: str, characters_max: int) -> str:
    if not isinstance(text, str):
        raise InvalidKey(
            f"a {what} is text, and this is {_kind(text)}; give text, or a tuple of parts where one is taken"
        )
    if len(text) > characters_max:
        raise InvalidKey(
            f"the {what} has {len(text)} characters, and {characters_max} are the most; give a shorter one"
        )
    if (not text.isascii() or not text.isprintable()) and _FORBIDDEN.search(text):
        raise InvalidKey(
            f"the {what} has a control character or an unpaired surrogate; give one of printable characters"
        )
    if not text or text.isspace():
        raise InvalidKey(f"the {what} is empty or blank, which names nothing; give one, or do not guard this call")
    return text


def _joined(parts: object, what: str) -> str:
    if type(parts) is not tuple:
        return _part(parts, f"the {what}")
    if not parts:
        raise InvalidKey(f"the {what} is an empty tuple, which names nothing; give its parts")
    return ":".join([_escaped(_part(part, f"a part of the {what}")) for part in parts])


def _part(value: object, what: str) -> str:
    if type(value) is str and value and not value.isspace():
        return value
    _refuse_missing(value, what)
    text = stable_text(value)
    if text is None:
        raise EncodingError(
            f"{what} is {_kind(value)}, which has no text that is the same everywhere; "
            "give its id as text, an integer, a UUID, a Decimal, a date or an aware datetime"
        )
    return text


def _escaped(text: str) -> str:
    return _ESCAPED.sub(r"\\\g<0>", text) if ":" in text or "\\" in text else text


def _refuse_missing(value: object, what: str) -> None:
    if value is None or (isinstance(value, str) and (not value or value.isspace())):
        raise InvalidKey(
            f"{what} is {'missing' if value is None else 'empty or blank'}, which names nothing; give its value"
        )


def _digested_if_long(text: str) -> str:
    _checked(text, "key", max(len(text), KEY_CHARACTERS_MAX))
    return text if len(text) <= KEY_CHARACTERS_MAX else f"sha256:{sha256(text.encode()).hexdigest()}"


def _kind(value: object) -> str:
    return f"of type {type(value).__qualname__}"


# --- digests --------------------------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _downstream_digest(*parts: str | int) -> bytes:
    encoded = [str(part).encode() for part in parts]
    framed = b"".join(b"%d:%b" % (len(part), part) for part in encoded)
    return sha256(b"notwice downstream key 1;" + framed).digest()[:16]


def _business_digest(facts: object, window: timedelta | None, at: datetime | None) -> str:
    form = canonical_facts([facts, _window_number(window, at)])
    return f"bk_{sha256(b'notwice business key 1;' + form).hexdigest()}"


def _window_number(window: timedelta | None, at: datetime | None) -> tuple[timedelta, int] | None:
    """Give a window's length with its number since 1970."""
    if window is None and at is None:
        return None
    if window is None or at is None or at.utcoffset() is None:
        raise InvalidKey(
            "a business key for a window of time needs both window and at, and at must be an aware datetime"
        )
    if window <= timedelta(0):
        raise InvalidKey("the window of a business key must be longer than nothing; give a positive timedelta")
    return window, (at - _EPOCH) // window


# --- fields of a business key ---------------------------------------------------------------------------------------

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# fmt: off
_VOLATILE_WORDS = frozenset([
    "attempt", "attempts", "ciphertext", "cryptogram", "encrypted", "jti", "nonce", "now", "random", "retries",
    "retry", "salt", "signature", "timestamp", "traceparent", "tries", "try", "ts",
])
_VOLATILE_ENDS = frozenset([
    "correlation_id", "created_on", "request_id", "session_id", "span_id", "trace_id", "updated_on",
])
_VOLATILE_NAMES = frozenset([
    "created", "created_date", "created_time", "date_created", "modified", "sent_time", "time", "updated",
])
# fmt: on


def looks_volatile(name: str) -> bool:
    """Say whether a field's name looks as if its value changed at every try, in snake case or camel case."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not _VOLATILE_WORDS.isdisjoint(words) or words[1:][-1:] == ["at"]:
        return True
    return "_".join(words[-2:]) in _VOLATILE_ENDS or "_".join(words) in _VOLATILE_NAMES


def _stable(value: object, path: str, excluded: frozenset[str], *, depth: int = 0) -> object:
    """Take the stable fields out of a value, at all depths."""
    if depth > DEPTH_MAX:
        raise EncodingError(f"the fields are nested deeper than {DEPTH_MAX} levels; include those that identify it")
    named = fields_of(value)
    if named is not None:
        prefix = f"{path}." if path else ""
        kept = {name: f"{prefix}{name}" for name in named if f"{prefix}{name}" not in excluded}
        return {name: _stable(named[name], _steady(inner), excluded, depth=depth + 1) for name, inner in kept.items()}
    if isinstance(value, (list, tuple)):
        return [_stable(item, path, excluded, depth=depth + 1) for item in cast("Sequence[object]", value)]
    return value


def _steady(path: str) -> str:
    name = path.rpartition(".")[2]
    if looks_volatile(name):
        raise InvalidKey(
            f"field {path} looks as if it changed at every try, and a key made of it would guard nothing; "
            "exclude it, or include by name the fields that identify what is meant"
        )
    return path


def _included(source: object, path: str) -> object:
    """Give the field that a dotted path names."""
    value = source
    for name in path.split("."):
        named = fields_of(value) or {}
        if name not in named:
            raise InvalidKey(f"there is no field {path} to make the business key of{_suggestion(name, named)}")
        value = named[name]
    _refuse_missing(value, f"field {path} of the business key")
    return value


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else "; give one of the names that are there"


# --- templates ------------------------------------------------------------------------------------------------------

_FIELD = re.compile(r"(?P<name>[^\W\d]\w*)(?P<steps>(?:\.[^\W\d]\w*|\[[^\[\]{}]+\])*)")
_STEP = re.compile(r"\.(\w+)|\[([^\[\]]+)\]")


@lru_cache(maxsize=1024)
def _parsed(template: str) -> tuple[str | Field, ...]:
    """Give a template's literal texts and fields in their order."""
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as error:
        raise InvalidKey(f"the template {template!r} is malformed ({error}); write a field as {{name}}") from error
    parts: list[str | Field] = []
    for literal, written, specification, conversion in pieces:
        if literal:
            parts.append(literal)
        if written is not None:
            if specification or conversion:
                raise InvalidKey(f"a field of the template {template!r} has a format; write {{{written}}} alone")
            parts.append(_field(written, template))
    _refuse_ambiguous(parts, template)
    return tuple(parts)


def _field(written: str, template: str) -> Field:
    found = _FIELD.fullmatch(written)
    if found is None:
        raise InvalidKey(
            f"{{{written}}} in the template {template!r} is no field; write {{name}} or {{name.attribute}}"
        )
    steps = tuple((".", name) if name else ("[", item) for name, item in _STEP.findall(found["steps"]))
    return Field(found["name"], steps, written)


def _refuse_ambiguous(parts: list[str | Field], template: str) -> None:
    """Refuse a template whose different values could give one text: values hold no bare ``:``, so it must part them."""
    if not parts:
        raise InvalidKey(
            "the template is empty, which names nothing; write a text with fields, such as refund:{order_id}"
        )
    literals = [part if isinstance(part, str) else None for part in parts]
    if any(literal and "\\" in literal for literal in literals):
        raise InvalidKey(
            f"the template {template!r} has a backslash, which stands for escaped separators; leave it out"
        )
    fields = [place for place, literal in enumerate(literals) if literal is None]
    for left, right in pairwise(fields):
        if ":" not in "".join(literal or "" for literal in literals[left:right]):
            raise InvalidKey(
                f"two fields of the template {template!r} have no ':' between them, so that different values could "
                "give one text; write it between them"
            )


def _filled(parts: Sequence[str | Field], values: Mapping[str, object]) -> str:
    return "".join(
        [
            part if isinstance(part, str) else _escaped(_part(_value(part, values), f"the value of {{{part.written}}}"))
            for part in parts
        ]
    )


def _value(field: Field, values: Mapping[str, object]) -> object:
    """Reach the value of a field. Raises `InvalidKey` where it can't be reached."""
    if field.name not in values:
        raise InvalidKey(f"there is no value for {{{field.written}}}{_suggestion(field.name, values)}")
    value = values[field.name]
    for kind, name in field.steps:
        try:
            value = getattr(value, name) if kind == "." else _item(value, name)
        except (AttributeError, LookupError, TypeError) as error:
            raise InvalidKey(
                f"{{{field.written}}} can't be reached: a value of type {type(value).__qualname__} has no {name}; "
                "give a value that has it, or name another field"
            ) from error
    return value


def _item(value: Any, name: str) -> object:  # noqa: ANN401 - whatever has items
    return value[int(name)] if name.isdigit() and not isinstance(value, Mapping) else value[name]
