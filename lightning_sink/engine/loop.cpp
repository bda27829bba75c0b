// The loop around a compiled step: many steps in one call, without the interpreter between them.
//
// It uses nothing but the step's functions, the C interface that generated code itself uses, and Python's.

#include <cfenv>

namespace lightning_sink {

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

  Inputs(const Step& step, PyObject* fixed_list, PyObject* rows_list, PyObject* positions_list, int64_t steps)
      : fixed(fixed_list), rows(rows_list), positions(numbers(positions_list)) {
    const bool match = fixed.size() == static_cast<size_t>(step.inputs) && rows.size() == positions.size() * steps;
    if (!match || steps < 1) throw std::runtime_error("wrong inputs");
  }
};

// Runs steps on tensors of torch's; `last` are the outputs of the last one, whatever becomes of the one behind it.
//
// Inputs are given as copies of handles: letting go of one that only Python holds besides takes the interpreter's lock.
inline void run_steps(
    const Step& step, const Inputs& inputs, const Kept& kept, int64_t steps, int64_t& done, Tensors& last) {
  const size_t differing = inputs.positions.size();
  std::vector<AtenTensorHandle> handles(step.inputs);
  for (; done < steps; ++done) {
    Tensors outputs(step.outputs);
    for (size_t i = 0; i < handles.size(); ++i) handles[i] = inputs.fixed.copy(i);
    for (size_t i = 0; i < differing; ++i) handles[inputs.positions[i]] = inputs.rows.copy(done * differing + i);
    step.run(handles.data(), outputs.data());
    outputs.part();
    swap(last, outputs);
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
inline void run_bare(
    const Step& step, const Inputs& inputs, const Kept& kept, int64_t steps, int64_t& done, Tensors& last) {
  const size_t differing = inputs.positions.size();
  std::vector<bare::Tensor> tensors(step.inputs), outputs(step.outputs), made(step.outputs);
  std::vector<int64_t> bytes;
  for (size_t i = 0; i < tensors.size(); ++i) {
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
      step.run_bare(tensors.data(), made.data());
      std::swap(outputs, made);
      kept.note(outputs, done);
    }
    run_steps(step, inputs, kept, steps, done, last);
  } catch (...) {
    for (size_t i = 0; i < outputs.size() && done > 0; ++i) last.put(i, bare::copy(outputs[i]));
    throw;
  }
}

// Steps in a row: what they need, and what has become of them.
class Run {
 public:
  Run(const Step& step, Inputs inputs, PyObject* kept, int64_t steps)
      : step_(step), inputs_(std::move(inputs)), kept_(kept), steps_(steps), last_(step.outputs) {
    std::fegetenv(&floats_);
  }

  // Runs them, on whichever thread; needs no lock of the interpreter's. Tells whether all were run.
  bool go() {
    const auto began = std::chrono::steady_clock::now();
    std::fesetenv(&floats_);  // whether subnormal numbers count as zeros is kept for each thread
    try {
      const auto run = step_.run_bare == nullptr ? run_steps : run_bare;
      run(step_, inputs_, kept_, steps_, done_, last_);
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

  // Gives back the memory that they have left to this thread; a worker's goes with its thread.
  void clear() { step_.clear(); }

  // Returns when they have ended, if they were begun.
  void wait() {
    if (worker_ != nullptr) worker_->wait(number_);
    worker_.reset();
  }

  // Returns how many were run, the outputs of the last of them, the seconds that it took, and why the next one failed,
  // None if all were run.
  PyObject* result() {
    if (PyErr_Occurred()) return nullptr;  // a custom operation in Python may have left one
    PyObject* outputs = PyList_New(done_ > 0 ? step_.outputs : 0);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(outputs); ++i) {
      PyList_SET_ITEM(outputs, i, PyCapsule_New(last_.take(i), nullptr, nullptr));
    }
    const char* failure = done_ == steps_ ? nullptr : failure_.c_str();
    return Py_BuildValue("LNdz", static_cast<long long>(done_), outputs, seconds_, failure);
  }

 private:
  const Step& step_;
  Inputs inputs_;
  Kept kept_;
  int64_t steps_, done_ = 0;
  double seconds_ = 0;
  Tensors last_;
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

// What steps call.
LIGHTNING_SINK_API const void* lightning_sink_kernels() {
  using namespace lightning_sink;
  static const Kernels kernels{multiply_small, pool_small};
  return &kernels;
}

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
      const Released unlocked;
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

// Returns a capsule of steps in a row; `step` is what `lightning_sink_bind` returned.
LIGHTNING_SINK_API PyObject* lightning_sink_prepare(
    const void* step, PyObject* fixed, PyObject* rows, PyObject* positions, PyObject* kept, int64_t steps) {
  using namespace lightning_sink;
  return guarded([&] {
    const Step& of = *static_cast<const Step*>(step);
    Run* run = new Run(of, Inputs(of, fixed, rows, positions, steps), kept, steps);
    return PyCapsule_New(run, nullptr, forget_run);
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
      const Released unlocked;
      run->go();
      run->clear();
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
