"""What ARCHITECTURE.md says is there, and the path that it names is one that can be read in an afternoon."""

import re
from pathlib import Path

from test_layers import FILES, PACKAGE

TEXT = (PACKAGE.parent / "ARCHITECTURE.md").read_text()
PATH = TEXT.partition("## The main path")[2].partition("## The rooms")[0]
LINES = 7_500


def named(text):
    return re.findall(r"`([\w/]+\.(?:py|cpp))`", text)


def test_files_that_are_named_are_there():
    root = PACKAGE.parent
    missing = [name for name in named(TEXT) if not ((PACKAGE / name).exists() or (root / name).exists())]
    assert named(TEXT)
    assert not missing


def test_rooms_that_are_there_are_named():
    rooms = {Path(name).parent.as_posix() for name in FILES} - {"."}
    assert {room for room in rooms if f"`{room}/`" not in TEXT} == set()


def test_the_main_path_is_read_in_an_afternoon():
    lines = [len((PACKAGE / name).read_text().splitlines()) for name in named(PATH)]
    assert 30 <= len(lines) <= 40
    assert sum(lines) < LINES
