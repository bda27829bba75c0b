"""Every private name of PyTorch's that the engine uses is there and does what it is used for."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

from lightning_sink.engine import private

OPERATIONS = torch.ops.aten


@pytest.mark.parametrize("name", private.__all__)
def test_the_name_is_there(name):
    assert hasattr(private, name), f"`lightning_sink.engine.private.{name}` is gone: PyTorch has moved a private name"


def test_what_is_computed_again_is_told_apart():
    """`tests/engine/compiler/test_recomputed.py` sees that it is."""
    assert private._GOES_BACKWARD is not None, "`torch.autograd.graph._engine_run_backward` is gone"
    assert hasattr(torch._C, "_current_graph_task_id"), "`torch._C._current_graph_task_id` is gone"
    assert checkpoint.__module__ == "torch.utils.checkpoint", "checkpoints have moved"


def test_operations_tell_what_they_write_to():
    assert private.is_mutable(OPERATIONS.add_.Tensor), "`OpOverload._schema.is_mutable` is gone or means something else"
    assert not private.is_mutable(OPERATIONS.add.Tensor)
    assert private.schema_name(OPERATIONS.add_.Tensor) == "aten::add_", "`OpOverload._schema.name` is gone"
    target, other = torch.ones(1), torch.ones(1)
    written = list(private.written_arguments(OPERATIONS.add_.Tensor, (target, other), {}, torch.Tensor))
    assert [id(tensor) for tensor in written] == [id(target)], "`OpOverload._schema.arguments` has changed"
    written = list(private.written_arguments(OPERATIONS.add.out, (target, other), {"out": target}, torch.Tensor))
    assert [id(tensor) for tensor in written] == [id(target)]


@pytest.mark.parametrize("name", sorted(private._NORMALIZES))
def test_normalizations_write_to_their_statistics(name):
    operation = getattr(OPERATIONS, name.partition("::")[2]).default
    names = [argument.name for argument in operation._schema.arguments]
    assert {"running_mean", "running_var"} <= set(names), f"the arguments of `{name}` have other names"
    given = {name: torch.ones(1) for name in names} | {"training": True}
    written = list(private.written_arguments(operation, tuple(given[name] for name in names), {}, torch.Tensor))
    assert private.is_mutable(operation)
    assert {id(given["running_mean"]), id(given["running_var"])} <= {*map(id, written)}


def test_an_operation_on_lists_runs_one_by_one():
    operation = OPERATIONS._foreach_mul.Scalar
    assert private.is_on_lists(operation)
    assert not private.is_on_lists(OPERATIONS.mul.Tensor)
    assert hasattr(operation, "_op_dk"), "`OpOverload._op_dk` is gone"
    first, second = private.one_by_one(operation, ([torch.ones(1), torch.ones(2)], 3.0), {})
    assert (first.tolist(), second.tolist()) == ([3.0], [3.0, 3.0])


def test_operations_tell_whether_they_give_views():
    assert private.is_view(OPERATIONS.expand.default), "`OpOverload._schema.returns` has changed"
    assert private.is_view(OPERATIONS.split.Tensor)
    assert not private.is_view(OPERATIONS.add.Tensor)
    assert not private.is_view(OPERATIONS.add_.Tensor)


def test_a_dispatch_mode_sees_operations_below_autograd():
    seen = []

    class Seen(private.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    weight = torch.ones(2, requires_grad=True)
    with Seen():
        (weight * 2).sum().backward()
    assert OPERATIONS.mul.Tensor in seen, "a `TorchDispatchMode` no longer sees operations"
    assert len(seen) > 2, "a `TorchDispatchMode` no longer sees the backward pass"


@pytest.mark.parametrize("listed", [False, True])
def test_whether_the_compiler_draws_as_the_operation_does(listed, monkeypatch):
    from torch._inductor.decomposition import decompositions

    functional = OPERATIONS.rrelu_with_noise_functional.default
    monkeypatch.delitem(decompositions, functional, raising=False)
    if listed:  # as in torch 2.11
        monkeypatch.setitem(decompositions, functional, lambda *args: None)
    assert private.draws_otherwise(OPERATIONS.rrelu_with_noise.default) is listed
    assert not private.draws_otherwise(OPERATIONS.bernoulli.p, torch.float64)
    assert private.draws_otherwise(OPERATIONS.bernoulli.default, torch.float64)
    assert not private.draws_otherwise(OPERATIONS.bernoulli.default, torch.float32)


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_asks_whether_to_make_an_optimizers_step(fused):
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    said = []

    class Other:
        is_asked = True

        def takes(self, scaler, optimizer):
            return self.is_asked

        def keeping(self):
            said.append("keeps")
            return nullcontext()

        def run(self, is_left_out, make):
            said.append(is_left_out.item())

    other = Other()
    for other.is_asked in True, False:
        for slope in 1.0, float("inf"):
            optimizer.zero_grad()
            scaler.scale((weight * slope).sum()).backward()
            refuses = pytest.raises(RuntimeError, match="fused form") if fused and not other.is_asked else nullcontext()
            with private.scaler_steps_by(other), refuses:
                scaler.step(optimizer)
            if not (fused and not other.is_asked):
                scaler.update()
    assert said == ["keeps"] * fused + [0.0] + ["keeps"] * fused + [1.0], (
        "`GradScaler._maybe_opt_step` or `_step_supports_amp_scaling` is gone or means something else"
    )
    assert weight.tolist() == ([1.0, 1.0] if fused else [0.0, 0.0])  # who is asked has made none


def test_hooks_on_optimizers_are_found():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0)
    assert private.step_hooks(optimizer) == [], "an optimizer's hooks have other names"
    handles = [optimizer.register_step_pre_hook(print), optimizer.register_step_post_hook(print)]
    handles.append(register_optimizer_step_pre_hook(print))
    assert len(private.step_hooks(optimizer)) == 3, "an optimizer's hooks have other names"
    for handle in handles:
        handle.remove()


def test_tensors_are_keys_by_identity():
    keys = private.WeakIdKeyDictionary()
    first, second = torch.ones(2), torch.ones(2)
    keys[first] = 1
    assert first in keys, "`WeakIdKeyDictionary` no longer finds a tensor"
    assert second not in keys
    del first
    assert len(keys) == 0, "`WeakIdKeyDictionary` keeps tensors alive"


def test_a_modules_own_parameters_and_tensors():
    module = nn.Sequential(nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3), nn.BatchNorm1d(3, affine=False))
    module.register_buffer("nothing", None)
    module.register_buffer("not_saved", torch.ones(1), persistent=False)
    module.register_parameter("own", nn.Parameter(torch.ones(1)))
    for part in module.modules():
        own = list(part.named_parameters(recurse=False))
        assert private.own_parameters(part) == own, "`Module._parameters` holds something else than before"
        children = list(part.named_children())
        assert private.own_modules(part) == children, "`Module._modules` holds something else than before"
    names = private.names_within(module)
    assert names == (("0", "1", "2"), ("own",), ("nothing", "not_saved"), ("not_saved",)), "names are held elsewhere"
    found = {id(tensor) for tensor in private.own_tensors(module.modules())}
    public = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    assert found == public, "`Module._parameters` and `Module._buffers` hold something else than before"


def test_trees():
    flat, spec = private.pytree.tree_flatten({"a": [1, (2,)]})
    assert flat == [1, 2]
    assert private.pytree.tree_unflatten(flat, spec) == {"a": [1, (2,)]}
    assert private.pytree.tree_map_only(int, str, [1, "x"]) == ["1", "x"]
    assert spec.flatten_up_to({"a": [[1, 2], (3,)]}) == [[1, 2], 3]


def test_distributions_ask_whether_all_is_true(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "_is_all_true", lambda valid: asked.append(valid) or private.is_all_true(valid))
    torch.distributions.Normal(0.0, 1.0, validate_args=True).log_prob(torch.ones(1))
    assert len(asked) == 3, "`torch.distributions` checks what it is given in another way"
    with pytest.raises(RuntimeError, match="in words"):
        private.assert_async(torch.tensor(False), "in words")


def test_hooks_are_found():
    layer = nn.Linear(1, 1)
    assert vars(layer).keys() >= private.MODULE_HOOKS, "a module keeps its hooks under other names"
    assert not any(private.tensor_hooks(layer.weight))
    handles = [
        layer.weight.register_hook(lambda gradient: gradient),
        layer.weight.register_post_accumulate_grad_hook(lambda parameter: None),
    ]
    assert all(private.tensor_hooks(layer.weight)), "a tensor keeps its hooks under another name"
    for handle in handles:
        handle.remove()


def test_hooks_on_every_module_are_found():
    assert private.global_hooks() == ()
    hook = nn.modules.module.register_module_forward_hook(lambda layer, given, out: None)
    assert len(private.global_hooks()) == 1, "torch keeps the hooks on every module under other names"
    hook.remove()
    assert private.global_hooks() == ()


def test_hooks_and_modes_around_every_step_are_found():
    handle = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: None)
    assert len(private.global_hooks()) == 1, "torch keeps the hooks on every optimizer under other names"
    handle.remove()
    with torch.autograd.graph.saved_tensors_hooks(abs, abs):
        assert private.global_hooks() == (abs, abs), "torch keeps the hooks on saved tensors elsewhere"
    with torch.overrides.TorchFunctionMode() as mode:
        assert private.global_hooks() == (mode,), "torch keeps function modes elsewhere"
    assert private.global_hooks() == ()


def test_operations_tell_whether_they_are_there_for_a_device():
    assert private.has_kernel(OPERATIONS.add.Tensor, torch.device("cpu"))
    assert private.has_kernel(OPERATIONS.linear.default, torch.device("cpu")), "one that is made of others"
    assert private.has_kernel(OPERATIONS.histogram.bin_ct, torch.device("cpu"))
    assert not private.has_kernel(OPERATIONS.histogram.bin_ct, torch.device("cuda"))


def test_vmap_refuses_what_it_has_no_rule_for():
    values = torch.randint(0, 3, (2, 4))
    with private.without_fallback(), pytest.raises(RuntimeError, match="vmap fallback"):
        torch.vmap(lambda row: torch.bincount(row, minlength=3))(values)
    with pytest.warns(UserWarning, match="performance drop"):
        torch.vmap(lambda row: torch.bincount(row, minlength=3))(values)


def test_tensors_that_hold_memory_are_counted():
    tensor = torch.ones(3)
    alone = private.holders_of_memory(tensor)
    view = tensor.detach()
    assert private.holders_of_memory(tensor) == alone + 1
    del view
    assert private.holders_of_memory(tensor) == alone == 2


def test_it_is_known_whether_hooks_see_what_is_saved():
    assert not private.saves_by_hooks()
    with torch.autograd.graph.save_on_cpu():
        assert private.saves_by_hooks(), "`torch._C._autograd._top_saved_tensors_default_hooks` gives something else"


def test_whether_functions_are_seen():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            assert not private.sees_functions(Mode), "what a mode does is seen by itself"
            return func(*args, **(kwargs or {}))

    assert not private.sees_functions(Mode), "the modes have another name"
    with Mode(), torch.device("cpu"):
        assert private.sees_functions(Mode), "the modes have another name"
        torch.ones(1)
    with torch.device("cpu"):
        assert not private.sees_functions(Mode), "another mode sees nothing for this one"
