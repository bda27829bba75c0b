"""What is said of steps for which there is no program."""

from loop import Training, batches, both, loss_of, mlp, sgd

RESTLESS = "what the step takes as constant, attributes or the optimizer's options, keeps changing"


def counting(between=lambda training, sink: None):
    """Steps that change `calls`, and go this way or that by it and by `factor`."""

    def make():
        module = mlp()
        module.calls, module.factor = 0, 1.0

        def step(batch, index):
            module.calls += 1
            return loss_of(module, batch) * module.factor * (2 if module.calls % 5 == 0 else 1)

        return Training(module, sgd(module), step, between)

    return make


def told(make):
    _, sink = both(make, [[batch] for batch in batches(60)], verify=0)
    assert sink.compiled == 0
    return [hazard.what for hazard in sink.hazards]


def test_what_the_step_was_said_to_change_is_not_said_to_keep_changing():
    """In sinks of a step each, programs find it changed between them, too: one thing, one warning."""
    assert told(counting()) == ["the step changes Python state: `calls`"]


def test_what_others_change_is_said_beside_it():
    def between(training, sink):
        training.module.factor = 1.0 + 0.1 * (sink % 3)

    said = told(counting(between))
    assert said[0] == "the step changes Python state: `calls`"
    assert [what for what in said if what.startswith(RESTLESS)] == [f"{RESTLESS}: `calls`, `factor`"]
