"""Who holds something is found, frozen or not."""

import subprocess
import sys

from lightning_sink.engine.referrers import referrers

FROZEN = """
import gc
from lightning_sink.engine.referrers import referrers
from lightning_sink.engine.replacing import put_in_place_of

class Held:
    pass

old, new, holder = Held(), Held(), [None]
holder[0] = old
gc.freeze()
assert not [found for found in gc.get_referrers(old) if found is holder]
put_in_place_of(old, new)
assert holder == [new]
"""


def test_holders_are_found():
    held, other = object(), object()
    inside, outside = [held], [other]
    found = referrers(held)
    assert any(holder is inside for holder in found)
    assert not any(holder is outside for holder in found)


def test_a_tuple_of_the_searchs_own_is_none():
    held = [object()]
    assert not [holder for holder in referrers(held) if type(holder) is tuple]


def test_what_is_frozen_is_found():
    subprocess.run([sys.executable, "-c", FROZEN], check=True, timeout=120)
