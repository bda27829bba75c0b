// The loop around a compiled step: many steps in one call, without the interpreter between them.
//
// It uses nothing but the step's functions, the C interface that generated code itself uses, and Python's.

#include <algorithm>
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

// Those of some steps in a row that are alike. fixed: their inputs, None where one differs; rows: the inputs that differ,
// step after step; positions: where they go; links: an input's position, the turn before this one that gives it, and
// which of its outputs it is, three by three; last: what the last one of them gave.
struct Turn {
  const Step& step;
  Tensors fixed, rows;
  std::vector<int64_t> positions;
  Kept kept;
  std::vector<int64_t> links;
  Tensors last;
  bool has_last = false;

  Turn(const Step& of, PyObject* described, int64_t rounds)
      : step(of),
        fixed(PyTuple_GET_ITEM(described, 1)),
        rows(PyTuple_GET_ITEM(described, 2)),
        positions(numbers(PyTuple_GET_ITEM(described, 3))),
        kept(PyTuple_GET_ITEM(described, 4)),
        links(numbers(PyTuple_GET_ITEM(described, 5))),
        last(of.outputs) {
    const bool match = fixed.size() == static_cast<size_t>(of.inputs) && rows.size() == positions.size() * rounds;
    if (!match || rounds < 1) throw std::runtime_error("wrong inputs");
  }
};

using Turns = std::vector<Turn>;

// Runs steps on tensors of torch's.
//
// Inputs are given as copies of handles: letting go of one that only Python holds besides takes the interpreter's lock.
inline void run_steps(Turns& turns, int64_t steps, int64_t& done) {
  for (; done < steps; ++done) {
    Turn& turn = turns[done % turns.size()];
    const int64_t round = done / turns.size(), differing = turn.positions.size();
    std::vector<AtenTensorHandle> handles(turn.step.inputs);
    Tensors outputs(turn.step.outputs);
    for (size_t i = 0; i < handles.size(); ++i) handles[i] = turn.fixed.copy(i);
    for (int64_t i = 0; i < differing; ++i) handles[turn.positions[i]] = turn.rows.copy(round * differing + i);
    for (size_t i = 0; i < turn.links.size(); i += 3) {
      handles[turn.links[i]] = turns[turn.links[i + 1]].last.copy(turn.links[i + 2]);
    }
    turn.step.run(handles.data(), outputs.data());
    outputs.part();
    swap(turn.last, outputs);
    turn.has_last = true;
    turn.kept.note(turn.last, round);
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

// What a turn needs without tensors of torch's. It stays on the thread that made it, whose memory it has.
struct Bare {
  std::vector<bare::Tensor> inputs, outputs, made;
  std::vector<int64_t> bytes;  // of the inputs that differ

  explicit Bare(const Turn& turn) : inputs(turn.step.inputs), outputs(turn.step.outputs), made(turn.step.outputs) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (turn.fixed[i] != nullptr) inputs[i] = bare::Tensor(turn.fixed[i]);
    }
    for (size_t i = 0; i < turn.positions.size(); ++i) {
      const View first(turn.rows[i]);
      bytes.push_back(bare::bytes_of(first.dimensions, first.sizes, first.strides, first.dtype));
      static_cast<View&>(inputs[turn.positions[i]]) = first;
    }
  }
};

// The same without tensors of torch's, but for the last round, whose outputs others get. Of a tensor that differs from
// step to step, all but the place is as in the first.
inline void run_bare(Turns& turns, int64_t steps, int64_t& done) {
  const int64_t count = turns.size();
  std::deque<Bare> all;
  for (const Turn& turn : turns) all.emplace_back(turn);
  try {
    for (; done < steps - count; ++done) {
      const Turn &turn = turns[done % count], &next = turns[(done + 1) % count];
      Bare &of = all[done % count], &of_next = all[(done + 1) % count];
      for (size_t i = 0, row = done / count * turn.positions.size(); i < turn.positions.size(); ++i) {
        of.inputs[turn.positions[i]].data = place_of(turn.rows[row + i]);
      }
      for (size_t i = 0, row = (done + 1) / count * next.positions.size(); i < next.positions.size(); ++i) {
        fetch_ahead(place_of(next.rows[row + i]), of_next.bytes[i]);
      }
      for (size_t i = 0; i < turn.links.size(); i += 3) {
        static_cast<View&>(of.inputs[turn.links[i]]) = all[turn.links[i + 1]].outputs[turn.links[i + 2]];
      }
      turn.step.run_bare(of.inputs.data(), of.made.data());
      std::swap(of.outputs, of.made);
      turn.kept.note(of.outputs, done / count);
    }
    run_steps(turns, steps, done);
  } catch (...) {
    for (int64_t i = 0; i < count && i < done; ++i) {
      for (size_t j = 0; j < all[i].outputs.size() && !turns[i].has_last; ++j) {
        turns[i].last.put(j, bare::copy(all[i].outputs[j]));
      }
    }
    throw;
  }
}

// Steps in a row: what they need, and what has become of them.
class Run {
 public:
  Run(Turns turns, int64_t steps) : turns_(std::move(turns)), steps_(steps) { std::fegetenv(&floats_); }

  // Runs them, on whichever thread; needs no lock of the interpreter's. Tells whether all were run.
  bool go() {
    const auto began = std::chrono::steady_clock::now();
    std::fesetenv(&floats_);  // whether subnormal numbers count as zeros is kept for each thread
    try {
      const auto is_bare = [](const Turn& turn) { return turn.step.run_bare != nullptr; };
      const auto run = std::all_of(turns_.begin(), turns_.end(), is_bare) ? run_bare : run_steps;
      run(turns_, steps_, done_);
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
  void clear() {
    for (const Turn& turn : turns_) turn.step.clear();
  }

  // Returns when they have ended, if they were begun.
  void wait() {
    if (worker_ != nullptr) worker_->wait(number_);
    worker_.reset();
  }

  // Returns how many were run, what the last one of each turn gave that was reached, the seconds that it took, and why
  // the next one failed, None if all were run.
  PyObject* result() {
    if (PyErr_Occurred()) return nullptr;  // a custom operation in Python may have left one
    PyObject* outputs = PyList_New(0);
    for (size_t turn = 0; turn < turns_.size() && static_cast<int64_t>(turn) < done_; ++turn) {
      for (size_t i = 0; i < turns_[turn].last.size(); ++i) {
        PyObject* output = PyCapsule_New(turns_[turn].last.take(i), nullptr, nullptr);
        PyList_Append(outputs, output);
        Py_DECREF(output);
      }
    }
    const char* failure = done_ == steps_ ? nullptr : failure_.c_str();
    return Py_BuildValue("LNdz", static_cast<long long>(done_), outputs, seconds_, failure);
  }

 private:
  Turns turns_;
  int64_t steps_, done_ = 0;
  double seconds_ = 0;
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

// Returns a capsule of steps in a row. described: for each turn the step that `lightning_sink_bind` returned, and what a
// `Turn` has of it.
LIGHTNING_SINK_API PyObject* lightning_sink_prepare(PyObject* described, int64_t steps) {
  using namespace lightning_sink;
  return guarded([&] {
    Turns turns;
    const int64_t count = PyList_GET_SIZE(described), rounds = steps / count;
    if (rounds * count != steps) throw std::runtime_error("wrong number of steps");
    for (int64_t i = 0; i < count; ++i) {
      PyObject* turn = PyList_GET_ITEM(described, i);
      turns.emplace_back(*static_cast<const Step*>(PyLong_AsVoidPtr(PyTuple_GET_ITEM(turn, 0))), turn, rounds);
    }
    return PyCapsule_New(new Run(std::move(turns), steps), nullptr, forget_run);
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
