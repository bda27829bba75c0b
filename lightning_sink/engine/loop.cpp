// The loop around a compiled step: many steps in one call, without the interpreter between them.
//
// `loop.py` places this text before the step that Inductor generated, `inductor_entry_impl`, and fills in the two counts.
// It uses nothing but that function, the C interface that generated code itself uses, and Python's.

void inductor_entry_impl(AtenTensorHandle* inputs, AtenTensorHandle* outputs);  // inputs are taken, outputs given away

namespace lightning_sink {

constexpr size_t NUM_INPUTS = @INPUTS@;
constexpr size_t NUM_OUTPUTS = @OUTPUTS@;

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

struct InLoop {
  InLoop() { in_loop = true; }
  ~InLoop() { in_loop = false; }
};

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

// fixed: the inputs, None where one differs; rows: the inputs that differ, step after step; positions: where they go.
// Returns how many steps were run, the outputs of the last of them, and why the next one failed, None if all were run.
// kept: for each output of which every step's value is wanted its index, where the first goes, and its bytes.
PyObject* run(PyObject* fixed_list, PyObject* rows_list, PyObject* positions_list, PyObject* kept_list, int64_t steps) {
  Tensors fixed(fixed_list), rows(rows_list), outputs(NUM_OUTPUTS), last(NUM_OUTPUTS);
  int64_t done = 0;
  std::string failure;
  const std::vector<int64_t> positions = numbers(positions_list), kept = numbers(kept_list);
  if (fixed.size() != NUM_INPUTS || rows.size() != positions.size() * steps) throw std::runtime_error("wrong inputs");
  try {
    Unlocked unlocked;
    InLoop in_loop;
    std::array<AtenTensorHandle, NUM_INPUTS> inputs{};
    for (int64_t step = 0; step < steps; ++step) {
      for (size_t i = 0; i < NUM_INPUTS; ++i) inputs[i] = fixed.copy(i);
      for (size_t i = 0; i < positions.size(); ++i) inputs[positions[i]] = rows.take(step * positions.size() + i);
      inductor_entry_impl(inputs.data(), outputs.data());
      for (size_t i = 0; i < kept.size(); i += 3) {
        void* value = nullptr;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(outputs[kept[i]], &value));
        std::memcpy(reinterpret_cast<char*>(kept[i + 1]) + step * kept[i + 2], value, kept[i + 2]);
      }
      last.clear();
      swap(last, outputs);
      done = step + 1;
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (PyErr_Occurred()) return nullptr;
  PyObject* result = PyList_New(done > 0 ? NUM_OUTPUTS : 0);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(result); ++i) {
    PyList_SET_ITEM(result, i, PyCapsule_New(last.take(i), nullptr, nullptr));
  }
  return done == steps ? Py_BuildValue("LNO", static_cast<long long>(done), result, Py_None)
                       : Py_BuildValue("LNs", static_cast<long long>(done), result, failure.c_str());
}

}  // namespace lightning_sink

extern "C" __attribute__((visibility("default"))) PyObject* lightning_sink_run(
    PyObject* fixed, PyObject* rows, PyObject* positions, PyObject* kept, int64_t steps) {
  try {
    return lightning_sink::run(fixed, rows, positions, kept, steps);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "unhandled error");
  }
  return nullptr;
}
