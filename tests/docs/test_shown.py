"""The comparison by which pages are checked can fail."""

import pytest
from pages import Block
from shown import is_shown

TABLE = """
 component   variance    ratio
 ─────────────────────────────
       pc1    4.11057   53.90%
"""


def test_lengths_of_spaces_rules_and_bars_do_not_count() -> None:
    assert is_shown("a  b\n────\n███░ 10%", " a b \n\n──\n█░░░░ 10%\n")


@pytest.mark.parametrize("got", ["", "component", TABLE + "more", TABLE.replace("pc1", "pc1 (noise)")])
def test_other_words_are_not_what_is_shown(got: str) -> None:
    assert is_shown(TABLE, TABLE)
    assert not is_shown(TABLE, got)
    assert not is_shown(TABLE, got, numbers_vary=True)


def test_other_numbers_count_unless_they_vary() -> None:
    other = TABLE.replace("4.11057", "12.5").replace("53.90", "7")
    assert not is_shown(TABLE, other)
    assert is_shown(TABLE, other, numbers_vary=True)
    assert not is_shown("1 row of 3", "1 row of many", numbers_vary=True)


def test_a_hash_stands_for_any_other_hash_and_for_no_word() -> None:
    assert is_shown("study 9e021db26608.", "study ab34d0000012.", numbers_vary=True)
    assert not is_shown("study 9e021db26608.", "study unknown.", numbers_vary=True)


def test_three_dots_stand_for_anything_in_their_line_or_for_whole_lines() -> None:
    assert is_shown("a ... z\n...\nend", "a b z\nc\nd\nend")
    assert not is_shown("a ... z\nend", "a b z\nc\nend")
    assert not is_shown("...\nend", "a\nb")


def test_commands_are_told_from_their_output() -> None:
    block = Block(page="page", line=1, language="console", text="$ one \\\n      more\nsaid\n$ two\n\nlast\n")
    assert block.commands() == [("one \\\n      more", "said"), ("two", "\nlast")]


def test_a_console_block_without_a_prompt_is_refused() -> None:
    with pytest.raises(AssertionError, match="must begin with"):
        Block(page="page", line=1, language="console", text="make demo\n").commands()
