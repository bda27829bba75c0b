// The largest number of each window of an image, and where it lies: `max_pool2d_with_indices`.
//
// The library, and what Inductor generates, decide number by number which one is larger, by branches that the processor
// guesses wrongly half of the time; that is most of what they take. Here the larger ones are selected, without a branch,
// for LANES windows side by side. What lies in any other way, or reaches beyond the image, is left to the library.
// Measured in examples/benchmarks/RESULTS.md.

namespace lightning_sink {

// Images that lie one behind the other, and the windows in each.
struct Windows {
  const float* images;
  int64_t count, rows, columns;              // of images, and of each
  int64_t height, width, down, right;        // of a window, and from one to the next
  int64_t out_rows, out_columns;
};

// Every `step`-th number, so many of them.
inline Lanes every(const float* from, int64_t step, int64_t numbers) {
  if (step == 1) return Lanes::loadu(from, numbers);
  if (step == 2) {
    const int64_t spanned = 2 * numbers - 1;
    const Lanes near = Lanes::loadu(from, std::min(spanned, LANES));
    return at::vec::deinterleave2(near, Lanes::loadu(from + LANES, std::max<int64_t>(spanned - LANES, 0))).first;
  }
  alignas(64) float picked[LANES] = {};
  for (int64_t i = 0; i < numbers; ++i) picked[i] = from[i * step];
  return Lanes::loadu(picked);
}

// The windows of one row of an image, which begin with the number at `first` of the image.
inline void pool_row(const Windows& windows, const float* image, int64_t first, float* largest, int64_t* places) {
  for (int64_t o = 0; o < windows.out_columns; o += LANES) {
    const int64_t begin = first + o * windows.right, numbers = std::min(LANES, windows.out_columns - o);
    Lanes present = every(image + begin, windows.right, numbers), offset(0.f);
    for (int64_t i = 0; i < windows.height; ++i) {
      for (int64_t j = i == 0 ? 1 : 0; j < windows.width; ++j) {
        const int64_t away = i * windows.columns + j;
        const Lanes value = every(image + begin + away, windows.right, numbers);
        const Lanes better = (value > present) | value.isnan();  // the first one of equals, the last that is no number
        present = Lanes::blendv(present, value, better);
        offset = Lanes::blendv(offset, Lanes(static_cast<float>(away)), better);
      }
    }
    present.store(largest + o, numbers);
    alignas(64) float offsets[LANES];
    offset.store(offsets);
    for (int64_t k = 0; k < numbers; ++k) places[o + k] = begin + k * windows.right + static_cast<int64_t>(offsets[k]);
  }
}

inline void pool(const Windows& windows, float* largest, int64_t* places, bool one_thread) {
#pragma omp parallel for if (!one_thread)
  for (int64_t n = 0; n < windows.count; ++n) {
    const float* image = windows.images + n * windows.rows * windows.columns;
    for (int64_t row = 0; row < windows.out_rows; ++row) {
      const int64_t to = (n * windows.out_rows + row) * windows.out_columns;
      pool_row(windows, image, row * windows.down * windows.columns, largest + to, places + to);
    }
  }
}

// Options of one number for both sides, or of two; none for the default.
inline std::array<int64_t, 2> both_sides(const int64_t* given, int64_t count, std::array<int64_t, 2> otherwise) {
  if (count == 0) return otherwise;
  return {given[0], given[count - 1]};
}

// Finds the windows; false where they are better left to the library.
inline bool find_windows(
    const View& view, std::array<int64_t, 2> size, std::array<int64_t, 2> step, bool is_plain, Windows& found) {
  const int64_t n = view.dimensions;
  if (!is_plain || view.dtype != aoti_torch_dtype_float32() || (n != 3 && n != 4)) return false;
  int64_t behind = 1;  // numbers from one to the next, in images that lie in one piece
  for (int64_t i = n - 1; i >= 0; behind *= view.sizes[i--]) {
    if (view.sizes[i] == 0 || view.strides[i] != behind) return false;
  }
  const int64_t rows = view.sizes[n - 2], columns = view.sizes[n - 1];
  if (view.sizes[n - 3] == 1 || rows < size[0] || columns < size[1]) return false;  // with one channel, also channels last
  if (size[0] * columns > 1 << 24) return false;  // places in a window are kept as floats
  found = {reinterpret_cast<const float*>(view.data), behind / (rows * columns), rows, columns, size[0], size[1],
           step[0], step[1], (rows - size[0]) / step[0] + 1, (columns - size[1]) / step[1] + 1};
  return true;
}

inline AtenTensorHandle new_output(const View& like, const Windows& windows, int32_t dtype) {
  std::array<int64_t, 4> sizes{}, strides{};
  const int64_t n = like.dimensions;
  std::copy_n(like.sizes, n, sizes.begin());
  sizes[n - 2] = windows.out_rows;
  sizes[n - 1] = windows.out_columns;
  int64_t behind = 1;
  for (int64_t i = n - 1; i >= 0; behind *= sizes[i--]) strides[i] = behind;
  AtenTensorHandle result = nullptr;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      n, sizes.data(), strides.data(), dtype, aoti_torch_device_type_cpu(), 0, &result));
  return result;
}

// Makes both outputs; false where that is better left to the library.
inline bool pool_small(
    AtenTensorHandle self, const int64_t* size, int64_t sizes, const int64_t* step, int64_t steps,
    const int64_t* padding, int64_t paddings, const int64_t* dilation, int64_t dilations, int32_t ceil_mode,
    AtenTensorHandle* largest, AtenTensorHandle* places, bool one_thread) {
  using Pair = std::array<int64_t, 2>;
  const View view(self);
  const Pair window = both_sides(size, sizes, {1, 1});
  const bool is_plain = ceil_mode == 0 && both_sides(padding, paddings, {0, 0}) == Pair{0, 0} &&
                        both_sides(dilation, dilations, {1, 1}) == Pair{1, 1};
  Windows windows{};
  if (!find_windows(view, window, both_sides(step, steps, window), is_plain, windows)) return false;
  using torch::aot_inductor::RAIIAtenTensorHandle;
  RAIIAtenTensorHandle first(new_output(view, windows, view.dtype));
  RAIIAtenTensorHandle second(new_output(view, windows, aoti_torch_dtype_int64()));
  auto* numbers = reinterpret_cast<float*>(View(first).data);
  pool(windows, numbers, reinterpret_cast<int64_t*>(View(second).data), one_thread);
  *largest = first.release();
  *places = second.release();
  return true;
}

}  // namespace lightning_sink
