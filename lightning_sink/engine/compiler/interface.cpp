// What a generated step and the C++ that is the same for all steps know of each other.
//
// The latter, `loop.cpp` and what it needs, is compiled once; with each step it would take most of the time. Neither
// library is linked to the other: they hand each other these tables.

namespace lightning_sink {

// A generated step.
struct Step {
  int64_t inputs, outputs;
  void (*run)(AtenTensorHandle* inputs, AtenTensorHandle* outputs);  // inputs are taken, outputs given away
  void (*run_bare)(bare::Tensor* inputs, bare::Tensor* outputs);     // likewise, on tensors of `bare.cpp`; may be null
  void (*clear)();  // gives back the memory that tensors of `bare.cpp` have left to this thread
};

// What steps call in the place of the library's functions. Both tell whether they did it: what is large, or laid out
// in any other way, is left to the library.
struct Kernels {
  bool (*multiply)(const View& out, const View* bias, const View& left, const View& right, bool one_thread);
  bool (*pool)(
      AtenTensorHandle self, const int64_t* size, int64_t sizes, const int64_t* step, int64_t steps,
      const int64_t* padding, int64_t paddings, const int64_t* dilation, int64_t dilations, int32_t ceil_mode,
      AtenTensorHandle* largest, AtenTensorHandle* places, bool one_thread);
};

}  // namespace lightning_sink
