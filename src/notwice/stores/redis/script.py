"""The one script that every operation is, and the keys that it is given.

Why a claim is safe: a server runs one script at a time and nothing else meanwhile, so what the script reads is what it
changes. It names two keys that live in one slot, so it runs whole on the one node that owns the slot, and a node that
does not own it, or owns half of it while the slot moves, refuses before anything is done. Its writes reach replicas
and the log as one transaction.

A replica would answer from what it had some time ago. Every path of the script holds a command that writes, if only
an empty one, so a server that was made a replica refuses (READONLY) instead of answering.

Each record is one string; writing it sets or clears its expiry in the same command. What is open has none.

Open records also stand in a sorted set of their shard, so that look-ups of unresolved ones need not read everything.
A name is entered before its record is written and taken out after: what is open is never missing there.
"""

from __future__ import annotations

import hashlib
from typing import Final

FORMAT: Final = 1
"""Of the strings. A reader that meets another one takes the record for `Unreadable` and leaves it alone."""

SHARDS: Final = 256
"""Records are dealt out to so many slots by the first byte of their digest: many more than a cluster has nodes."""

EXPIRY_SLACK_MS: Final = 60_000
"""So much longer than it must be kept a record stays: a purge, or a server that is late, finds it to judge it."""

_WHOLE = """
-- 1 byte FORMAT, 8 bytes written_ms, 8 bytes created_ms, 16 bytes checksum, 1 byte length of the etag, the etag, ...
local function checksum(head, rest)
    return string.sub(redis.sha1hex(head .. rest), 1, 16)
end
local function is_whole(found)
    return string.byte(found, 1) == 1
        and string.sub(found, 18, 33) == checksum(string.sub(found, 1, 17), string.sub(found, 34))
end
"""

MOVE: Final = f"""{_WHOLE}
-- KEYS: the record; the open records of its shard.
-- ARGV: get
--       touch, the expected etag: write it as it is
--       insert | swap, what is stored after the header, created_ms (0: now), expires_after_ms (none: never),
--       whether it is open (1 | 0), its name in the set, written_ms (0: now), the expected etag (swap)
-- Gives: whether it wrote, the time in ms, what is there if it did not write.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local found = redis.call('GET', KEYS[1])

local function has_etag(etag)
    return string.byte(found, 34) == #etag and string.sub(found, 35, 34 + #etag) == etag
end
local function place(created)
    return string.format('%016.0f', created) .. ARGV[6]
end

if ARGV[1] == 'touch' and found and has_etag(ARGV[2]) then
    redis.call('SET', KEYS[1], found, 'KEEPTTL')
    return {{1, now}}
end
local due = false
if ARGV[1] == 'insert' then
    due = not found
elseif ARGV[1] == 'swap' and found then
    due = has_etag(ARGV[8]) and is_whole(found)
end
if not due then
    redis.call('ZREM', KEYS[2], '')  -- a replica refuses this
    return {{0, now, found}}
end

local function time_or_now(text)
    local time = tonumber(text)
    return time == 0 and now or time
end
local created = time_or_now(ARGV[3])
local written = time_or_now(ARGV[7])
local head = struct.pack('>BI8I8', 1, written, created)
local value = head .. checksum(head, ARGV[2]) .. ARGV[2]
if ARGV[5] == '1' then
    redis.call('ZADD', KEYS[2], 0, place(created))
end
if ARGV[4] == '' then
    redis.call('SET', KEYS[1], value)
else
    local left = math.max(0, written + ARGV[4] - now) + {EXPIRY_SLACK_MS}
    redis.call('SET', KEYS[1], value, 'PX', string.format('%.0f', left))
end
if ARGV[5] ~= '1' then
    redis.call('ZREM', KEYS[2], place(created))
end
if found then
    local before, _ = struct.unpack('>I8', found, 10)
    if before ~= created then
        redis.call('ZREM', KEYS[2], place(before))
    end
end
return {{1, now}}
"""

DROP: Final = f"""{_WHOLE}
-- KEYS: the record. Gives 1 if it was expired and could be read, and is gone.
local left = redis.call('PTTL', KEYS[1])
if left < 0 or left >= {EXPIRY_SLACK_MS} or not is_whole(redis.call('GET', KEYS[1])) then
    return 0
end
return redis.call('DEL', KEYS[1])
"""

MOVE_NAME: Final = hashlib.new("sha1", MOVE.encode(), usedforsecurity=False).hexdigest()
"""What servers call the script."""
