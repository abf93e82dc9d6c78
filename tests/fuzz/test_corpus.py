"""Every input that was ever of interest, again, for every target."""

from __future__ import annotations

import pytest

from tests.fuzz.target import CORPUS, Target, from_line, to_line
from tests.fuzz.targets import EVERY, TARGETS


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_the_parser_keeps_its_word_on_every_kept_input(target: Target) -> None:
    """P14, P15: nothing but the documented errors comes out, round trips are equal, spellings of one thing are one."""
    inputs = target.inputs()
    assert inputs
    for data in inputs:
        target.run(data)


def test_every_file_of_inputs_is_a_target_s() -> None:
    """No input is kept that nothing reads."""
    assert {path.name for path in CORPUS.iterdir()} == {target.file.name for target in EVERY.values()}


def test_inputs_are_kept_as_they_are() -> None:
    """Any bytes can be written as a line of ASCII and read again."""
    every = bytes(range(256))
    for data in (every, b"#remark", b"", b"\\x41", b"a\nb"):
        line = to_line(data)
        assert from_line(line) == data
        assert line.isascii()
        assert "\n" not in line
        assert not line.startswith("#")
