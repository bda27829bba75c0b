"""Programs are found by the kind of the step, by its batch's signature, and by the way that the step goes."""

from types import SimpleNamespace

from lightning_sink.engine.programs.registry import Programs

KEY, OTHER = ("kind", "shape"), ("kind", "another shape")


def program(fits=True, homes=(), batches=None):
    return SimpleNamespace(
        fits=lambda generation: fits,
        is_for=lambda leaves: batches is None or leaves[0] in batches,
        homes=set(homes),
        questions=[SimpleNamespace(name="where", value=value) for value in batches or []],
    )


def step(key=KEY, leaves=()):
    return SimpleNamespace(key=key, leaves=list(leaves))


def test_the_first_that_fits_is_found():
    programs, right = Programs(), program()
    assert not programs
    for made in (program(fits=False), right, program()):
        programs.add(KEY, made)
    assert programs
    assert programs.find(step()) is right
    assert programs.find(step(OTHER)) is None


def test_a_program_may_be_for_some_batches_only():
    programs, one, other = Programs(), program(batches=["a"]), program(batches=["b"])
    programs.add(KEY, one)
    programs.add(KEY, other)
    assert [programs.find(step(leaves=leaves)) for leaves in ("a", "b", "c")] == [one, other, None]
    assert [programs.count_answers(key) for key in (KEY, OTHER)] == [2, 0]


def test_programs_for_the_same_answer_count_once():
    programs = Programs()
    for made in (program(), program(batches=["a"]), program(batches=["a"]), program(batches=["b"])):
        programs.add(KEY, made)
    assert programs.count_answers(KEY) == 2


def test_kinds_and_signatures():
    programs = Programs()
    programs.add(KEY, program(fits=False))
    assert programs.have(KEY)
    assert not programs.have(OTHER)
    assert programs.count_shapes("kind")
    assert not programs.count_shapes("another kind")


def test_what_is_removed_is_forgotten():
    programs, one = Programs(), program()
    programs.add(KEY, one)
    programs.remove(KEY, one)
    assert not programs
    assert not programs.have(KEY)
    assert not programs.count_shapes("kind")


def test_programs_that_count_on_a_place_go_with_it():
    programs, kept = Programs(), program(homes=["hidden"])
    programs.add(KEY, program(homes=["weight", "hidden"]))
    programs.add(OTHER, kept)
    programs.remove_homes({"weight"})
    assert not programs.have(KEY)
    assert programs.find(step(OTHER)) is kept


def test_the_oldest_of_many_branches_makes_room():
    programs = Programs()
    made = [program(fits=False) for _ in range(100)]
    for one in made:
        programs.add(KEY, one)
    made[0].fits = lambda generation: True
    assert programs.find(step()) is None
    made[-1].fits = lambda generation: True
    assert programs.find(step()) is made[-1]


def test_what_is_put_aside_is_there_when_its_time_comes_again():
    programs, one, other = Programs(), program(), program()
    programs.add(KEY, one)
    programs.put_aside("small")
    assert not programs
    programs.add(KEY, other)
    programs.put_aside("large")
    programs.take_again("none".__eq__)
    assert not programs
    programs.take_again("small".__eq__)
    assert programs.find(step()) is one
    assert one.generation == -1, "it looks again at what it takes for granted"
    programs.put_aside("small")
    programs.take_again("large".__eq__)
    assert programs.find(step()) is other


def test_what_waits_longest_makes_room_and_all_of_it_goes_with_its_places():
    programs = Programs()
    for number in range(100):
        programs.add(KEY, program(homes=["weight"] if number == 99 else []))
        programs.put_aside(number)
    programs.remove_homes({"weight"})
    for number, is_there in ((0, False), (98, True), (99, False)):
        programs.take_again(number.__eq__)
        assert bool(programs) is is_there
    programs.put_aside("kept")
    programs.clear()
    programs.take_again("kept".__eq__)
    assert not programs
