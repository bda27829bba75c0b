// What is compiled with each step: what its generated code calls, and its part of `interface.cpp`.
//
// `generated.py` places this text, behind `caught.cpp`, `bare.cpp` and `interface.cpp`, before the step that Inductor
// generated, `inductor_entry_impl`, and fills in what stands between two @.

void inductor_entry_impl(AtenTensorHandle* inputs, AtenTensorHandle* outputs);

// Of a step, which is a straight line of calls, the compiler would move what it can across all of them: half of the time
// that it takes.
#if defined(__GNUC__) && !defined(__clang__)
#define LIGHTNING_SINK_LINE_OF_CALLS __attribute__((optimize("O1")))
#else
#define LIGHTNING_SINK_LINE_OF_CALLS
#endif

namespace lightning_sink {

constexpr bool ONE_THREAD = @ONE_THREAD@;  // whether the step runs on one
constexpr bool HAS_BARE = @BARE@;          // whether there is a `bare_step`, the same step on the tensors of `bare.cpp`

void bare_step(bare::Tensor* inputs, bare::Tensor* outputs);

const Kernels* kernels = nullptr;  // until the step is bound: then the library does it all

thread_local bool in_loop = false;

// Lets go of the interpreter's lock; inside the loop, which has done so, does nothing.
class Unlocked {
 public:
  Unlocked() : state_(in_loop ? nullptr : PyEval_SaveThread()) {}
  ~Unlocked() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }

 private:
  PyThreadState* state_;
};

template <class Tensor, void (*step)(Tensor*, Tensor*)>
void run_in_loop(Tensor* inputs, Tensor* outputs) {
  struct InLoop {
    InLoop() { in_loop = true; }
    ~InLoop() { in_loop = false; }
  };
  const InLoop present;
  step(inputs, outputs);
}

// Tensors of torch's or of `bare.cpp`: how each is seen, and lent to the library.
inline View seen(AtenTensorHandle tensor) { return View(tensor); }
inline const View& seen(const bare::Tensor& tensor) { return tensor; }
inline AtenTensorHandle lent(AtenTensorHandle tensor) { return tensor; }
inline bare::Lent lent(const bare::Tensor& tensor) { return bare::Lent(tensor); }

template <class Out, class Left, class Right>
AOTITorchError mm_out(const Out& out, const Left& left, const Right& right) {
  const bool bound = kernels != nullptr;
  if (bound && kernels->multiply(seen(out), nullptr, seen(left), seen(right), ONE_THREAD)) return AOTI_TORCH_SUCCESS;
  return aoti_torch_cpu_mm_out(lent(out), lent(left), lent(right));
}

template <class Out, class Bias, class Left, class Right>
AOTITorchError addmm_out(
    const Out& out, const Bias& bias, const Left& left, const Right& right, double beta, double alpha) {
  const View& row = seen(bias);
  const bool is_plain = kernels != nullptr && beta == 1 && alpha == 1;
  if (is_plain && kernels->multiply(seen(out), &row, seen(left), seen(right), ONE_THREAD)) return AOTI_TORCH_SUCCESS;
  return aoti_torch_cpu_addmm_out(lent(out), lent(bias), lent(left), lent(right), beta, alpha);
}

template <class... Arguments>
AOTITorchError max_pool2d_with_indices(const Arguments&... arguments) {
  if (kernels != nullptr && kernels->pool(arguments..., ONE_THREAD)) return AOTI_TORCH_SUCCESS;
  return aoti_torch_cpu_max_pool2d_with_indices(arguments...);
}

inline void clear_pool() { bare::pool.clear(); }

}  // namespace lightning_sink

#define LIGHTNING_SINK_API extern "C" __attribute__((visibility("default")))

LIGHTNING_SINK_API const int32_t lightning_sink_is_bare = lightning_sink::HAS_BARE;

// Takes what the step calls, before anybody calls the step; returns the step.
LIGHTNING_SINK_API const void* lightning_sink_bind(const void* kernels) {
  using namespace lightning_sink;
  static const Step step = [] {
    Step made{@INPUTS@, @OUTPUTS@, run_in_loop<AtenTensorHandle, inductor_entry_impl>, nullptr, clear_pool};
    if constexpr (HAS_BARE) made.run_bare = run_in_loop<bare::Tensor, bare_step>;
    return made;
  }();
  lightning_sink::kernels = static_cast<const Kernels*>(kernels);
  return &step;
}
