// Operations on CUDA tensors, computed on the host when their stream comes to them (runtime.h).
//
// Shapes come from an operation's kernel for the device "meta", or from the host's over numbers that mean nothing. What
// draws takes its numbers from the state that CUDA's generator gives, so that graphs advance it as on a device.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/CUDAFunctions.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <cuda_runtime_api.h>
#include <iostream>
using c10::IValue;
using torch::jit::Stack;
extern "C" void fake_fail();
namespace {
at::Tensor raw(const at::Tensor& t) {
  if (!t.defined() || !t.is_cuda()) return t;
  auto out = at::from_blob(t.numel() ? const_cast<void*>(t.const_data_ptr()) : nullptr, t.sizes(), t.strides(),
                           t.options().device(at::kCPU).requires_grad(false));
  if (t.is_conj()) out._set_conj(true);
  if (t.is_neg()) out._set_neg(true);
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) out.unsafeGetTensorImpl()->set_wrapped_number(true);
  return out;
}
at::Tensor host_copy(const at::Tensor& t) {  // numbers of the host's are read when a kernel is launched
  if (!t.defined() || t.is_cuda()) return raw(t);
  auto c = t.clone();
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) c.unsafeGetTensorImpl()->set_wrapped_number(true);
  return c;
}
at::Tensor meta(const at::Tensor& t) {
  if (t.defined() && t.is_cpu() && t.dim() == 0) return t;
  if (!t.defined()) return t;
  auto m = at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta).requires_grad(false));
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) m.unsafeGetTensorImpl()->set_wrapped_number(true);
  if (t.is_conj()) m._set_conj(true);
  return m;
}
template <class F>
IValue mapped(const IValue& v, F f, c10::Device to) {
  if (v.isTensor()) return f(v.toTensor());
  if (v.isTensorList()) {
    c10::List<at::Tensor> l;
    for (const at::Tensor& t : v.toTensorList()) l.push_back(f(t));
    return l;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> l;
    for (const std::optional<at::Tensor>& t : v.toOptionalTensorList())
      l.push_back(t ? std::optional<at::Tensor>(f(*t)) : std::nullopt);
    return l;
  }
  if (v.isDevice()) return to;
  return v;
}
struct Clean {
  c10::impl::ForceDispatchKeyGuard g{c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
                                     c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
                                         c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView)};
};
struct Work {
  const c10::OperatorHandle op;
  Stack args;
  std::vector<at::Tensor> outs;
  bool random;
  uint64_t seed = 0, offset = 0;
  int64_t *seed_p = nullptr, *offset_p = nullptr;
  Stack compute() {
    Clean clean;
    Stack s = args;
    if (op.schema().name() == "aten::native_layer_norm_backward")  // a device keeps mean and deviation in float
      for (size_t i : {3, 4}) s[i] = s[i].toTensor().to(s[0].toTensor().scalar_type());
    auto gen = at::detail::getDefaultCPUGenerator();
    at::Tensor kept;
    if (random) {
      kept = gen.get_state();
      uint64_t a = seed_p ? *seed_p : seed, b = offset + (offset_p ? *offset_p : 0);
      gen.set_current_seed(a * 1000003 + b * 7919 + 17);
      for (auto& v : s)
        if (v.isGenerator()) v = gen;
    }
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &s);
    if (random) gen.set_state(kept);
    return s;
  }
  void run() {
    try {
      Stack s = compute();
      Clean clean;
      size_t i = 0;
      auto put = [&](const at::Tensor& t) {
        auto& o = outs.at(i++);
        const bool is_left_out = !t.defined() || (t.numel() == 0 && o.numel() > 0);  // batch norm's means, in `eval`
        if (o.defined() && !is_left_out) o.copy_(t);
      };
      if (!outs.empty())
        for (auto& v : s) {
          if (v.isTensor())
            put(v.toTensor());
          else if (v.isTensorList())
            for (const at::Tensor& t : v.toTensorList()) put(t);
        }
    } catch (std::exception& e) {
      std::cerr << "[fake] " << op.schema().name() << ": " << std::string(e.what()).substr(0, 400) << "\n";
      fake_fail();
    }
  }
};
void run_again(void* work) { static_cast<Work*>(work)->run(); }
void run_once(void* work) { std::unique_ptr<Work>(static_cast<Work*>(work))->run(); }
bool capturing(cudaStream_t s) {
  cudaStreamCaptureStatus st;
  cudaStreamIsCapturing(s, &st);
  return st != cudaStreamCaptureStatusNone;
}
// Whose kernels for "meta" are torch's Python, a tenth of a millisecond, which is none of a host's time beside a device.
const std::set<std::string> in_python{"aten::cat", "aten::stack"};
void boxed(const c10::OperatorHandle& op, Stack* stack) {
  auto& schema = op.schema();
  size_t n = schema.arguments().size();
  auto in = torch::jit::last(*stack, n).vec();
  auto stream = at::cuda::getCurrentCUDAStream();
  bool masked = false, any_list = false;
  auto check = [&](const at::Tensor& t) {
    TORCH_CHECK(!t.defined() || t.is_cuda() || t.dim() == 0,
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and ",
                t.device(), "! in ", schema.operator_name());
  };
  for (auto& v : in) {
    if (v.isTensor()) check(v.toTensor());
    if (v.isTensorList())
      for (const at::Tensor& t : v.toTensorList()) check(t);
    if (v.isOptionalTensorList())
      for (const std::optional<at::Tensor>& t : v.toOptionalTensorList())
        if (t && t->defined()) {
          any_list = true;
          masked |= t->scalar_type() == at::kBool || t->scalar_type() == at::kByte;
        }
  }
  bool reads = op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
  bool now = masked || (reads && !any_list);
  Work* w = new Work{op};
  w->random = op.hasTag(at::Tag::nondeterministic_seeded);
  if (w->random) {
    std::optional<at::Generator> g;
    for (auto& v : in)
      if (v.isGenerator()) g = v.toGenerator();
    auto gen = at::get_generator_or_default<at::CUDAGeneratorImpl>(g, at::cuda::detail::getDefaultCUDAGenerator());
    std::lock_guard<std::mutex> l(gen->mutex_);
    auto st = gen->philox_cuda_state(4);
    if (st.captured_) {
      w->seed_p = (int64_t*)st.seed_.ptr;
      w->offset_p = (int64_t*)st.offset_.ptr;
      w->offset = st.offset_intragraph_;
    } else {
      w->seed = st.seed_.val;
      w->offset = st.offset_.val;
    }
  }
  Stack results;
  bool aliased = !schema.returns().empty() && schema.returns()[0].alias_info() != nullptr;
  if (now) {
    TORCH_CHECK(!capturing(stream), "CUDA error: operation not permitted when stream is capturing (", schema.name(),
                ")");
    c10::cuda::warn_or_error_on_sync();
    cudaStreamSynchronize(stream);
    for (auto& v : in) w->args.push_back(mapped(v, raw, at::kCPU));
    Stack s = w->compute();
    delete w;
    if (aliased) {
      for (size_t i = 0; i < n; i++) {
        auto* a = schema.arguments()[i].alias_info();
        if (a && a->isWrite()) results.push_back(in[i]);
      }
    } else
      for (auto& v : s)
        results.push_back(mapped(v, [](const at::Tensor& t) { return t.defined() ? t.to(at::kCUDA) : t; }, at::kCUDA));
  } else {
    Stack m;
    {
      Clean clean;
      for (auto& v : in) m.push_back(mapped(v, meta, at::kMeta));
    }
    Stack made = m;
    {
      at::AutoDispatchBelowADInplaceOrView g;
      c10::impl::ExcludeDispatchKeyGuard py(
          c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
      auto by_numbers = [&] {  // that mean nothing
        Clean clean;
        made.clear();
        for (auto& v : in)
          made.push_back(
              mapped(v, [](const at::Tensor& t) { return t.defined() ? at::zeros_like(raw(t)) : t; }, at::kCPU));
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &made);
      };
      if (schema.returns().empty())
        made.clear();
      else if (in_python.count(schema.name()))
        by_numbers();
      else
        try {
          op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &made);
        } catch (c10::NotImplementedError&) {
          by_numbers();
        }
    }
    if (aliased) {
      for (size_t i = 0; i < n; i++) {
        auto* a = schema.arguments()[i].alias_info();
        if (!a || !a->isWrite()) continue;
        if (in[i].isTensor() && m[i].toTensor().defined() && in[i].toTensor().sizes() != m[i].toTensor().sizes())
          in[i].toTensor().resize_(m[i].toTensor().sizes());
        results.push_back(in[i]);
      }
      while (results.size() > schema.returns().size()) results.pop_back();
    } else {
      auto make = [&](const at::Tensor& t) {
        if (!t.defined()) return t;
        auto o = at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kCUDA));
        w->outs.push_back(raw(o));
        return o;
      };
      for (auto& v : made) {
        if (v.isTensor() && !v.toTensor().defined()) w->outs.push_back(at::Tensor());
        results.push_back(mapped(v, make, at::kCUDA));
      }
    }
    {
      Clean clean;
      for (auto& v : in) w->args.push_back(mapped(v, host_copy, at::kCPU));
    }
    auto e = cudaLaunchHostFunc(stream, capturing(stream) ? run_again : run_once, w);
    TORCH_CHECK(e == cudaSuccess, "CUDA error ", (int)e, " in ", schema.name());
  }
  torch::jit::drop(*stack, n);
  for (auto& r : results) stack->push_back(r);
}
void boxed_copy(const c10::OperatorHandle& op, Stack* stack) {
  auto in = torch::jit::last(*stack, 3).vec();
  auto self = in[0].toTensor(), src = in[1].toTensor();
  if (self.is_cuda() && src.is_cuda()) return boxed(op, stack);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CompositeExplicitAutograd), stack);
}
int64_t sdp(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
            std::optional<double>, bool) {
  return 0;
}
std::vector<std::unique_ptr<torch::Library>> libs;
int64_t install() {
  static const std::set<std::string> keep{"aten::record_stream",
                                          "aten::_local_scalar_dense",
                                          "aten::resize_",
                                          "aten::set_",
                                          "aten::_pin_memory",
                                          "aten::is_pinned",
                                          "aten::_fused_sdp_choice",
                                          "aten::_copy_from",
                                          "aten::_copy_from_and_resize",
                                          "aten::_efficientzerotensor",
                                          "aten::is_set_to",
                                          "aten::_nested_tensor_size"};
  auto lib = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  int64_t count = 0;
  for (auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) ||
        !(op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
          op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)))
      continue;
    if (keep.count(name.name) || name.name.rfind("aten::empty", 0) == 0) continue;
    bool view = false;
    for (auto& r : op->schema().returns()) view |= r.alias_info() && !r.alias_info()->isWrite();
    if (view) continue;
    std::string full = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    lib->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed>());
    count++;
  }
  lib->impl("copy_", torch::CppFunction::makeFromBoxedFunction<&boxed_copy>());
  lib->impl("_fused_sdp_choice", sdp);
  libs.push_back(std::move(lib));
  return count;
}
}  // namespace
TORCH_LIBRARY(without_gpu, m) { m.def("install() -> int", install); }
