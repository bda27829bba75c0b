// A device that is none: its memory is the host's, its operations are the CPU's, and it refuses what CUDA refuses.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_neg_view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace {

constexpr auto kFake = c10::DeviceType::PrivateUse1;
std::atomic<int64_t> waits{0};
thread_local bool works = false;  // whether an operation is at work, whose copies are none

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kFake; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return c10::Device(kFake, 0); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, getDevice()); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Memory of the host's that the device would copy from by itself: the host's, and known by where it lies.
struct Pinned final : c10::Allocator {
  static inline std::map<char*, size_t> blocks;
  static inline std::mutex mutex;
  static void free(void* data) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      blocks.erase(static_cast<char*>(data));
    }
    c10::free_cpu(data);
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    if (data) {
      std::lock_guard<std::mutex> lock(mutex);
      blocks[static_cast<char*>(data)] = bytes;
    }
    return {data, data, &free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  static bool holds(const void* place) {
    std::lock_guard<std::mutex> lock(mutex);
    auto next = blocks.upper_bound(static_cast<char*>(const_cast<void*>(place)));
    return next != blocks.begin() && place < std::prev(next)->first + std::prev(next)->second;
  }
};
Pinned pinned;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  bool isPinnedPtr(const void* data) const override { return Pinned::holds(data); }
};
const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    if (bytes) std::memset(data, 0xff, bytes);  // NaN, or -1
    return {data, data, &c10::free_cpu, c10::Device(kFake, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(kFake, &memory);

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

// The same memory, seen as the host's.
at::Tensor seen(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  auto bytes = tensor.storage().nbytes();
  auto storage = c10::Storage(c10::Storage::use_byte_size_t(), bytes,
                              c10::DataPtr(tensor.storage().mutable_data(), c10::Device(c10::kCPU)), nullptr, false);
  auto out = at::empty({0}, tensor.options().device(at::kCPU));
  out.set_(storage, tensor.storage_offset(), tensor.sizes(), tensor.strides());
  if (tensor.is_conj()) out._set_conj(true);
  if (tensor.is_neg()) out._set_neg(true);
  return out;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.device() != to.device() && !non_blocking && !works) ++waits;
  at::NoGradGuard guard;
  seen(to).copy_(seen(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::NoGradGuard guard;
  if (to.sizes() != from.sizes()) const_cast<at::Tensor&>(to).resize_(from.sizes());  // else strides would be lost
  seen(to).copy_(seen(from));
  return to;
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  ++waits;
  return at::_local_scalar_dense(seen(tensor));
}

const at::Tensor& resize(const at::Tensor& tensor, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  size_t bytes = (impl->numel() + impl->storage_offset()) * tensor.itemsize();
  if (bytes > tensor.storage().nbytes()) {
    auto fresh = memory.allocate(bytes);
    std::memcpy(fresh.get(), tensor.storage().data(), tensor.storage().nbytes());
    tensor.storage().set_data_ptr_noswap(std::move(fresh));
    tensor.storage().set_nbytes(bytes);
  }
  return tensor;
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset.expect_int());
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  return tensor;
}

at::Tensor& set_whole(at::Tensor& tensor, at::Storage source) {
  int64_t size = source.nbytes() / tensor.itemsize();
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(0);
  impl->set_sizes_and_strides(c10::IntArrayRef({size}), c10::IntArrayRef({1}));
  return tensor;
}

at::Tensor view(const at::Tensor& tensor, c10::SymIntArrayRef size) {
  return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor there(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(c10::Device(kFake, 0), /*non_blocking=*/true) : tensor;
}

std::optional<at::Tensor> seen(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::make_optional(seen(*tensor)) : tensor;
}

// Convolutions have a door of their own for devices that PyTorch does not know.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  return there(at::convolution_symint(seen(input), seen(weight), seen(bias), stride, padding, dilation, transposed,
                                      output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> mask) {
  c10::SymInt features = gradient.sym_size(1);
  auto [input_gradient, weight_gradient, bias_gradient] = at::convolution_backward_symint(
      seen(gradient), seen(input), seen(weight), c10::SymIntArrayRef(&features, 1), stride, padding, dilation,
      transposed, output_padding, groups, mask);
  return {there(input_gradient), there(weight_gradient), there(bias_gradient)};
}

at::Tensor& generator_state() {
  static at::Tensor state = at::detail::createCPUGenerator(1).get_state();
  return state;
}

// Runs an operation on the host, where CUDA would not refuse its arguments.
void elsewhere(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto count = op.schema().arguments().size();
  auto check = [&](const at::Tensor& tensor) {
    TORCH_CHECK(!tensor.defined() || tensor.is_privateuseone() || tensor.dim() == 0,
                "Expected all tensors to be on the same device, but found one on ", tensor.device(), " in ",
                op.schema().operator_name());
  };
  // What is made of numbers and not of shapes waits for them; an index does where it is a mask.
  bool reads = op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape), masked = false;
  bool indexes = false;
  for (const auto& value : torch::jit::last(*stack, count)) {
    if (value.isTensor()) check(value.toTensor());
    if (value.isTensorList()) for (const at::Tensor& tensor : value.toTensorList()) check(tensor);
    if (value.isOptionalTensorList())
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) if (tensor) {
        check(*tensor), indexes = true;
        masked |= tensor->scalar_type() == at::kBool || tensor->scalar_type() == at::kByte;
      }
  }
  if (!works && (masked || (reads && !indexes))) ++waits;
  struct AtWork {
    bool before = std::exchange(works, true);
    ~AtWork() { works = before; }
  } at_work;
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
  // The device's draws are its own: the host's generator lends its ways, and gets its state back.
  auto host = at::detail::getDefaultCPUGenerator();
  auto kept = host.get_state();
  host.set_state(generator_state());
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
  generator_state() = host.get_state();
  host.set_state(kept);
}

int64_t counted_waits() { return waits.load(); }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole);
  m.impl("view", view);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("_neg_view", at::native::_neg_view);
}

// Copying is how what only says that it is negated becomes so, and `seen` says it, too.
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&elsewhere>()); }

TORCH_LIBRARY(lightning_sink_fake, m) { 
  m.def("waits() -> int", counted_waits);
  m.def("rng_state() -> Tensor", [] { return generator_state().clone(); });
  m.def("set_rng_state(Tensor state) -> ()", [](const at::Tensor& state) { generator_state() = state.clone(); });
}
