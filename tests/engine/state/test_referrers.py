"""Who holds something is found, frozen or not."""

import subprocess
import sys

from lightning_sink.engine.state.referrers import functions_of, put_in_place_of, referrers

FROZEN = """
import gc
from lightning_sink.engine.state.referrers import functions_of, put_in_place_of

class Held:
    pass

def function():
    pass

old, new, holder = Held(), Held(), [None]
holder[0] = old
gc.freeze()
assert not [found for found in gc.get_referrers(old) if found is holder]
put_in_place_of(old, new)
assert holder == [new]

gc.freeze()
assert not [found for found in gc.get_objects() if found is function]
assert functions_of([function.__code__]) == [function]
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


def test_functions_are_found_by_their_code():
    made = [lambda: None for _ in range(3)]
    assert {*functions_of([made[0].__code__])} == {*made}
    assert not functions_of([])


def test_what_is_frozen_is_found():
    subprocess.run([sys.executable, "-c", FROZEN], check=True, timeout=120)


def test_what_a_class_holds_is_put_there_for_code_that_has_looked_it_up():
    class Registry:
        last = None

    def looked_up():
        return [Registry.last for _ in range(1000)][-1]

    Registry.last = held = [object()]
    looked_up()
    new = [1]
    put_in_place_of(held, new)
    del held
    assert looked_up() is new
