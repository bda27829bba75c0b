"""A guard tells for which steps a recording stands."""

from lightning_sink.engine.numbers.guards import Guard, Uses


def test_it_holds_while_the_decision_comes_out_the_same():
    step = [4]
    guard = Guard("step < 10", True, lambda: step[0] < 10)
    assert guard.holds()
    step[0] = 10
    assert not guard.holds()


def test_where_the_users_expression_has_no_value_it_does_not_hold():
    assert not Guard("1 / step > 2", False, lambda: 1 / 0 > 2).holds()


def test_a_decision_is_noted_once_as_it_came_out_first():
    uses = Uses(print, print)
    uses.decide("a", 1, lambda: 1)
    uses.decide("a", 2, lambda: 2)
    assert [guard.outcome for guard in uses.guards.values()] == [1]
