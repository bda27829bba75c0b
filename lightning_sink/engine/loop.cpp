// The loop around a compiled step: many steps in one call, without the interpreter between them.
//
// `generated.py` places this text, behind the other files, before the step that Inductor generated,
// `inductor_entry_impl`, and fills in what stands between two @. It uses nothing but that function, the C interface
// that generated code itself uses, and Python's.

#include <cfenv>

void inductor_entry_impl(AtenTensorHandle* inputs, AtenTensorHandle* outputs);  // inputs are taken, outputs given away

namespace lightning_sink {

constexpr size_t NUM_INPUTS = @INPUTS@;
constexpr size_t NUM_OUTPUTS = @OUTPUTS@;
constexpr bool HAS_BARE = @BARE@;  // whether there is a `bare_step`, the same step on the tensors of `bare.cpp`

void bare_step(bare::Tensor* inputs, bare::Tensor* outputs);  // likewise

// Owns the tensors of a list of capsules. None stands for a tensor that differs from step to step.
class Tensors {
 public:
  explicit Tensors(PyObject* capsules) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(capsules); ++i) {
      PyObject* item = PyList_GET_ITEM(capsules, i);
      void* handle = item == Py_None ? nullptr : PyCapsule_GetPointer(item, nullptr);
      handles_.push_back(static_cast<AtenTensorHandle>(handle));
    }
  }
  Tensors(Tensors&& other) noexcept : handles_(std::move(other.handles_)) { other.handles_.clear(); }
  explicit Tensors(size_t size) : handles_(size, nullptr) {}
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;
  friend void swap(Tensors& one, Tensors& other) { std::swap(one.handles_, other.handles_); }
  ~Tensors() { clear(); }

  void clear() {
    for (AtenTensorHandle& handle : handles_) {
      if (handle != nullptr) aoti_torch_delete_tensor_object(handle);
      handle = nullptr;
    }
  }
  AtenTensorHandle copy(size_t i) const {
    AtenTensorHandle result = nullptr;
    if (handles_[i] != nullptr) AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(handles_[i], &result));
    return result;
  }
  // Gives those that are one and the same a handle each.
  void part() {
    for (size_t i = 1; i < size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (handles_[i] != nullptr && handles_[i] == handles_[j]) handles_[i] = copy(j);
      }
    }
  }
  void put(size_t i, AtenTensorHandle handle) { handles_[i] = handle; }
  AtenTensorHandle take(size_t i) { return std::exchange(handles_[i], nullptr); }
  AtenTensorHandle operator[](size_t i) const { return handles_[i]; }
  AtenTensorHandle* data() { return handles_.data(); }
  size_t size() const { return handles_.size(); }

 private:
  std::vector<AtenTensorHandle> handles_;
};

std::vector<int64_t> numbers(PyObject* list) {
  std::vector<int64_t> result;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) result.push_back(PyLong_AsLongLong(PyList_GET_ITEM(list, i)));
  return result;
}

// The values that are wanted of every step: an output's index, where the first one goes, and its bytes, three by three.
class Kept {
 public:
  explicit Kept(PyObject* list) : numbers_(numbers(list)) {}

  template <class Outputs>
  void note(const Outputs& outputs, int64_t step) const {
    for (size_t i = 0; i < numbers_.size(); i += 3) {
      const int64_t bytes = numbers_[i + 2];
      std::memcpy(reinterpret_cast<char*>(numbers_[i + 1]) + step * bytes, View(outputs[numbers_[i]]).data, bytes);
    }
  }

 private:
  std::vector<int64_t> numbers_;
};

// fixed: the inputs, None where one differs; rows: the inputs that differ, step after step; positions: where they go.
struct Inputs {
  Tensors fixed, rows;
  std::vector<int64_t> positions;

  Inputs(PyObject* fixed_list, PyObject* rows_list, PyObject* positions_list, int64_t steps)
      : fixed(fixed_list), rows(rows_list), positions(numbers(positions_list)) {
    const bool match = fixed.size() == NUM_INPUTS && rows.size() == positions.size() * steps;
    if (!match || steps < 1) throw std::runtime_error("wrong inputs");
  }
};

// Runs a step on tensors of torch's; its outputs take the place of those of the step before.
//
// Inputs are given as copies of handles: letting go of one that only Python holds besides takes the interpreter's lock.
void run_step(const Inputs& inputs, int64_t step, Tensors& last) {
  std::array<AtenTensorHandle, NUM_INPUTS> handles{};
  Tensors outputs(NUM_OUTPUTS);
  for (size_t i = 0; i < NUM_INPUTS; ++i) handles[i] = inputs.fixed.copy(i);
  for (size_t i = 0; i < inputs.positions.size(); ++i) {
    handles[inputs.positions[i]] = inputs.rows.copy(step * inputs.positions.size() + i);
  }
  inductor_entry_impl(handles.data(), outputs.data());
  outputs.part();
  swap(last, outputs);
}

// Runs steps on tensors of torch's; `last` are the outputs of the last one, whatever becomes of the one behind it.
inline void run_steps(const Inputs& inputs, const Kept& kept, int64_t steps, int64_t& done, Tensors& last) {
  for (; done < steps; ++done) {
    run_step(inputs, done, last);
    kept.note(last, done);
  }
}

char* place_of(AtenTensorHandle tensor) {
  void* place = nullptr;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(tensor, &place));
  return static_cast<char*>(place);
}

constexpr int64_t AHEAD = 1 << 15;  // bytes of a tensor up to which it is fetched ahead: more would push others out

// Has the processor fetch memory into its cache while it does something else.
void fetch_ahead(const char* place, int64_t bytes) {
  for (int64_t i = 0; i < bytes && bytes <= AHEAD; i += bare::LINE) __builtin_prefetch(place + i, 0, 2);
}

// The same without tensors of torch's, but for the last step, whose outputs others get. Of a tensor that differs from step
// to step, all but the place is as in the first.
inline void run_bare(const Inputs& inputs, const Kept& kept, int64_t steps, int64_t& done, Tensors& last) {
  const size_t differing = inputs.positions.size();
  std::array<bare::Tensor, NUM_INPUTS> tensors;
  std::array<bare::Tensor, NUM_OUTPUTS> outputs, made;
  std::vector<int64_t> bytes;
  for (size_t i = 0; i < NUM_INPUTS; ++i) {
    if (inputs.fixed[i] != nullptr) tensors[i] = bare::Tensor(inputs.fixed[i]);
  }
  for (size_t i = 0; i < differing; ++i) {
    const View first(inputs.rows[i]);
    bytes.push_back(bare::bytes_of(first.dimensions, first.sizes, first.strides, first.dtype));
    static_cast<View&>(tensors[inputs.positions[i]]) = first;
  }
  try {
    for (; done < steps - 1; ++done) {
      for (size_t i = 0; i < differing; ++i) {
        tensors[inputs.positions[i]].data = place_of(inputs.rows[done * differing + i]);
        fetch_ahead(place_of(inputs.rows[(done + 1) * differing + i]), bytes[i]);
      }
      bare_step(tensors.data(), made.data());
      std::swap(outputs, made);
      kept.note(outputs, done);
    }
    run_steps(inputs, kept, steps, done, last);
  } catch (...) {
    for (size_t i = 0; i < NUM_OUTPUTS && done > 0; ++i) last.put(i, bare::copy(outputs[i]));
    throw;
  }
}

// Steps in a row: what they need, and what has become of them.
class Run {
 public:
  Run(Inputs inputs, PyObject* kept, int64_t steps) : inputs_(std::move(inputs)), kept_(kept), steps_(steps) {
    std::fegetenv(&floats_);
  }

  // Runs them, on whichever thread; needs no lock of the interpreter's. Tells whether all were run.
  bool go() {
    InLoop in_loop;
    const auto began = std::chrono::steady_clock::now();
    std::fesetenv(&floats_);  // whether subnormal numbers count as zeros is kept for each thread
    try {
      if constexpr (HAS_BARE) {
        run_bare(inputs_, kept_, steps_, done_, last_);
      } else {
        run_steps(inputs_, kept_, steps_, done_, last_);
      }
    } catch (const std::exception& error) {
      failure_ = error.what();
    } catch (...) {
      failure_ = "unhandled error";
    }
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    return done_ == steps_;
  }

  // Has a worker run them, behind what it was given before; where that fails they are not run.
  void go_on(std::shared_ptr<Worker> worker) {
    worker_ = std::move(worker);
    number_ = worker_->take([this] { return go(); });
  }

  // Returns when they have ended, if they were begun.
  void wait() {
    if (worker_ != nullptr) worker_->wait(number_);
    worker_.reset();
  }

  // Returns how many were run, the outputs of the last of them, the seconds that it took, and why the next one failed,
  // None if all were run.
  PyObject* result() {
    if (PyErr_Occurred()) return nullptr;  // a custom operation in Python may have left one
    PyObject* outputs = PyList_New(done_ > 0 ? NUM_OUTPUTS : 0);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(outputs); ++i) {
      PyList_SET_ITEM(outputs, i, PyCapsule_New(last_.take(i), nullptr, nullptr));
    }
    const char* failure = done_ == steps_ ? nullptr : failure_.c_str();
    return Py_BuildValue("LNdz", static_cast<long long>(done_), outputs, seconds_, failure);
  }

 private:
  Inputs inputs_;
  Kept kept_;
  int64_t steps_, done_ = 0;
  double seconds_ = 0;
  Tensors last_{NUM_OUTPUTS};
  std::string failure_;
  std::fenv_t floats_;
  std::shared_ptr<Worker> worker_;  // on which they run, until they have been waited for
  int64_t number_ = 0;              // which of its tasks they are
};

template <class Function>
PyObject* guarded(Function function) {
  try {
    return function();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "unhandled error");
  }
  return nullptr;
}

template <class Kind>
Kind* held_by(PyObject* capsule) {
  return static_cast<Kind*>(PyCapsule_GetPointer(capsule, nullptr));
}

void forget_run(PyObject* capsule) {
  held_by<Run>(capsule)->wait();
  delete held_by<Run>(capsule);
}

using SharedWorker = std::shared_ptr<Worker>;

// A process that was forked has a worker's memory without its thread, and would wait for that for ever: it runs rows
// itself, until it begins a thread of its own.
bool is_here(SharedWorker* worker) { return (*worker)->is_of_this_process(); }

void forget_worker(PyObject* capsule) {
  SharedWorker* worker = held_by<SharedWorker>(capsule);
  if (is_here(worker)) delete worker;
}

}  // namespace lightning_sink

#define LIGHTNING_SINK_API extern "C" __attribute__((visibility("default")))

LIGHTNING_SINK_API const int32_t lightning_sink_is_bare = lightning_sink::HAS_BARE;

// Returns a capsule of a thread for rows that are run beside the caller, one at a time. It ends with the capsule, when
// they have been waited for.
LIGHTNING_SINK_API PyObject* lightning_sink_worker() {
  using namespace lightning_sink;
  return guarded([] { return PyCapsule_New(new SharedWorker(std::make_shared<Worker>()), nullptr, forget_worker); });
}

// Waits for what a thread was given.
LIGHTNING_SINK_API PyObject* lightning_sink_rest(PyObject* worker) {
  using namespace lightning_sink;
  return guarded([&] {
    SharedWorker* shared = held_by<SharedWorker>(worker);
    if (is_here(shared)) (*shared)->wait();
    return Py_NewRef(Py_None);
  });
}

// Draws the masks of some steps. places, counts, probabilities: of a step's masks, one behind the other in what all steps
// have of each.
LIGHTNING_SINK_API PyObject* lightning_sink_masks(
    PyObject* state, PyObject* places, PyObject* counts, PyObject* probabilities, int64_t steps) {
  using namespace lightning_sink;
  return guarded([&] {
    GeneratorState* generator = static_cast<GeneratorState*>(PyLong_AsVoidPtr(state));
    const std::vector<int64_t> where = numbers(places), many = numbers(counts);
    std::vector<double> likely;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(probabilities); ++i) {
      likely.push_back(PyFloat_AsDouble(PyList_GET_ITEM(probabilities, i)));
    }
    if (many.size() != where.size() || likely.size() != where.size()) throw std::runtime_error("wrong masks");
    {
      const Unlocked unlocked;
      Twister twister(*generator);
      for (int64_t step = 0; step < steps; ++step) {
        for (size_t i = 0; i < where.size(); ++i) {
          mask(twister, reinterpret_cast<float*>(where[i]) + step * many[i], many[i], likely[i]);
        }
      }
    }
    return Py_NewRef(Py_None);  // with the interpreter's lock again: until Python 3.12 it counts who holds None
  });
}

// Returns a capsule of steps in a row.
LIGHTNING_SINK_API PyObject* lightning_sink_prepare(
    PyObject* fixed, PyObject* rows, PyObject* positions, PyObject* kept, int64_t steps) {
  using namespace lightning_sink;
  return guarded([&] {
    return PyCapsule_New(new Run(Inputs(fixed, rows, positions, steps), kept, steps), nullptr, forget_run);
  });
}

// Runs them: on a worker, behind what it has to do, or to their end where that is None.
LIGHTNING_SINK_API PyObject* lightning_sink_launch(PyObject* capsule, PyObject* worker) {
  using namespace lightning_sink;
  return guarded([&] {
    Run* run = held_by<Run>(capsule);
    if (worker != Py_None && is_here(held_by<SharedWorker>(worker))) {
      run->go_on(*held_by<SharedWorker>(worker));
    } else {
      const Unlocked unlocked;
      run->go();
      bare::pool.clear();  // a worker's goes with its thread
    }
    return Py_NewRef(Py_None);
  });
}

// Waits for the end of steps in a row; returns what has become of them.
LIGHTNING_SINK_API PyObject* lightning_sink_wait(PyObject* capsule) {
  using namespace lightning_sink;
  return guarded([&] {
    held_by<Run>(capsule)->wait();
    return held_by<Run>(capsule)->result();
  });
}
