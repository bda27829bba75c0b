// Products of small matrices of floats, in the place of the library's.
//
// The library's cost a microsecond of dispatch each, and are made for large ones. Measured in
// examples/benchmarks/RESULTS.md.

#include <ATen/cpu/vec/vec.h>
#include <omp.h>
#include <torch/csrc/inductor/cpp_prefix.h>

namespace lightning_sink {

constexpr int64_t LARGE = 1 << 22;    // multiplications from which on the library, which blocks for caches, is as fast
constexpr int64_t DIVIDED = 1 << 17;  // multiplications from which on threads that wait for each other are faster

using Lanes = at::vec::Vectorized<float>;
constexpr int64_t LANES = Lanes::size();
constexpr int ROWS = LANES >= 16 ? 8 : 4;  // ROWS x VECTORS sums, VECTORS of the right matrix and a number: registers
constexpr int VECTORS = 3;

// A matrix: the number in row i and column j is at data[i * row + j * column].
struct Matrix {
  float* data;
  int64_t row, column;
  Matrix at(int64_t i, int64_t j) const { return {data == nullptr ? data : data + i * row + j * column, row, column}; }
};

// R rows and V vectors of the result, the last of them of `last` columns; columns of b, of c and of the bias, if there is
// one, lie side by side.
template <int R, int V>
void multiply_tile(Matrix a, Matrix b, Matrix bias, Matrix c, int64_t depth, int64_t last) {
  Lanes sums[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      const float* start = bias.data == nullptr ? nullptr : bias.at(r, v * LANES).data;
      sums[r][v] = start == nullptr ? Lanes(0.f) : Lanes::loadu(start, v == V - 1 ? last : LANES);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Lanes right[V];
    for (int v = 0; v < V; ++v) right[v] = Lanes::loadu(b.data + k * b.row + v * LANES);
    for (int r = 0; r < R; ++r) {
      const Lanes left(a.data[r * a.row + k * a.column]);
      for (int v = 0; v < V; ++v) sums[r][v] = at::vec::fmadd(left, right[v], sums[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V - 1; ++v) sums[r][v].store(c.data + r * c.row + v * LANES);
    sums[r][V - 1].store(c.data + r * c.row + (V - 1) * LANES, last);
  }
}

template <int V>
void multiply_columns(Matrix a, Matrix b, Matrix bias, Matrix c, int64_t rows, int64_t depth, int64_t last) {
  int64_t i = 0;
  for (; i + ROWS <= rows; i += ROWS) multiply_tile<ROWS, V>(a.at(i, 0), b, bias.at(i, 0), c.at(i, 0), depth, last);
  for (; i + 2 <= rows; i += 2) multiply_tile<2, V>(a.at(i, 0), b, bias.at(i, 0), c.at(i, 0), depth, last);
  for (; i < rows; ++i) multiply_tile<1, V>(a.at(i, 0), b, bias.at(i, 0), c.at(i, 0), depth, last);
}

#ifdef CPU_CAPABILITY_AVX512
alignas(64) constexpr float ZEROS[16] = {};

// Turns sixteen rows of sixteen numbers. Four rows are put together as they are loaded, from memory, which leaves two
// rounds of shuffles where the library's has four: a quarter of its time.
inline void transpose_tile(const std::array<const float*, 16>& rows, float* to, int64_t width) {
  for (int64_t j = 0; j < 16; j += 4) {
    __m512 together[4];
    for (int i = 0; i < 4; ++i) {
      const __m512 one = _mm512_castps128_ps512(_mm_loadu_ps(rows[i] + j));
      const __m512 two = _mm512_insertf32x4(one, _mm_loadu_ps(rows[i + 4] + j), 1);
      const __m512 three = _mm512_insertf32x4(two, _mm_loadu_ps(rows[i + 8] + j), 2);
      together[i] = _mm512_insertf32x4(three, _mm_loadu_ps(rows[i + 12] + j), 3);
    }
    const auto pairs = [&](int i) { return _mm512_castps_pd(_mm512_unpacklo_ps(together[i], together[i + 1])); };
    const auto others = [&](int i) { return _mm512_castps_pd(_mm512_unpackhi_ps(together[i], together[i + 1])); };
    float* row = to + j * width;
    _mm512_storeu_ps(row, _mm512_castpd_ps(_mm512_unpacklo_pd(pairs(0), pairs(2))));
    _mm512_storeu_ps(row + width, _mm512_castpd_ps(_mm512_unpackhi_pd(pairs(0), pairs(2))));
    _mm512_storeu_ps(row + 2 * width, _mm512_castpd_ps(_mm512_unpacklo_pd(others(0), others(2))));
    _mm512_storeu_ps(row + 3 * width, _mm512_castpd_ps(_mm512_unpackhi_pd(others(0), others(2))));
  }
}
#endif

// Writes rows of numbers as columns, and zeros beside them up to `width`, a multiple of LANES.
inline void transpose(const float* from, int64_t row, float* to, int64_t width, int64_t columns, int64_t depth) {
  int64_t first = 0;  // the first number of each row that no tile has
#ifdef CPU_CAPABILITY_AVX512
  first = depth / 16 * 16;
  for (int64_t j = 0; j < width; j += 16) {
    for (int64_t k = 0; k < first; k += 16) {
      std::array<const float*, 16> rows;
      for (int64_t i = 0; i < 16; ++i) rows[i] = j + i < columns ? from + (j + i) * row + k : ZEROS;
      transpose_tile(rows, to + k * width + j, width);
    }
  }
#endif
  if (first == depth) return;
  const int left = static_cast<int>(depth - first);
  at::vec::transpose_mxn<float>(from + first, row, to + first * width, width, static_cast<int>(columns), left);
  for (int64_t k = first; k < depth; ++k) std::fill(to + k * width + columns, to + (k + 1) * width, 0.f);
}

// Returns b with its columns side by side and zeros up to a multiple of LANES, in memory that the next call takes over.
Matrix pack(Matrix b, int64_t depth, int64_t columns) {
  static thread_local std::vector<float> packed;
  const int64_t width = (columns + LANES - 1) / LANES * LANES;
  if (b.column == 1 && width == columns) return b;
  if (static_cast<int64_t>(packed.size()) < depth * width) packed.resize(depth * width);
  float* to = packed.data();
  if (b.column != 1) {
    transpose(b.data, b.column, to, width, columns, depth);
    return {to, width, 1};
  }
  for (int64_t i = 0; i < depth; ++i) {
    std::copy_n(b.data + i * b.row, columns, to + i * width);
    std::fill(to + i * width + columns, to + (i + 1) * width, 0.f);
  }
  return {to, width, 1};
}

// Some rows of the result, of a matrix b that was packed.
void multiply_rows(Matrix a, Matrix b, Matrix bias, Matrix c, int64_t rows, int64_t columns, int64_t depth) {
  for (int64_t j = 0; j < columns;) {
    const int64_t left = (columns - j + LANES - 1) / LANES;
    const int64_t vectors = left == 4 ? 2 : std::min<int64_t>(left, VECTORS);  // 2 and 2 rather than 3 and 1
    const int64_t last = std::min(LANES, columns - j - (vectors - 1) * LANES);
    const auto part = vectors == 3 ? multiply_columns<3> : vectors == 2 ? multiply_columns<2> : multiply_columns<1>;
    part(a, b.at(0, j), bias.at(0, j), c.at(0, j), rows, depth, last);
    j += vectors * LANES;
  }
}

void multiply(
    Matrix a, Matrix b, Matrix bias, Matrix c, int64_t rows, int64_t columns, int64_t depth, bool one_thread) {
  b = pack(b, depth, columns);
  if (one_thread || rows * columns * depth < DIVIDED) return multiply_rows(a, b, bias, c, rows, columns, depth);
#pragma omp parallel
  {
    const int64_t tiles = (rows + ROWS - 1) / ROWS, threads = omp_get_num_threads(), thread = omp_get_thread_num();
    const int64_t first = std::min(rows, tiles * thread / threads * ROWS);
    const int64_t end = std::min(rows, tiles * (thread + 1) / threads * ROWS);
    if (first < end) {
      multiply_rows(a.at(first, 0), b, bias.at(first, 0), c.at(first, 0), end - first, columns, depth);
    }
  }
}

struct Floats {
  Matrix matrix{};
  int64_t rows = 0, columns = 0;
  bool fits = false;  // floats in two dimensions

  explicit Floats(const View& view) {
    if (view.dimensions != 2 || view.dtype != aoti_torch_dtype_float32()) return;
    matrix = {reinterpret_cast<float*>(view.data), view.strides[0], view.strides[1]};
    rows = view.sizes[0];
    columns = view.sizes[1];
    fits = true;
  }
};

// What is added to the result of a product: one row to each row of it, or a matrix of its size.
struct Bias {
  Matrix matrix{};  // without data where nothing is added
  bool fits = true;

  Bias(const View* view, const Floats& result) {
    if (view == nullptr) return;
    const int64_t *sizes = view->sizes, *strides = view->strides, dimensions = view->dimensions;
    fits = (dimensions == 1 || (dimensions == 2 && sizes[0] == result.rows)) && sizes[dimensions - 1] == result.columns;
    fits = fits && strides[dimensions - 1] == 1 && view->dtype == aoti_torch_dtype_float32();
    matrix = {reinterpret_cast<float*>(view->data), dimensions == 2 ? strides[0] : 0, 1};
  }
};

// Multiplies, and adds what is given to that; false where that is better left to the library.
bool multiply_small(const View& out, const View* bias, const View& left, const View& right, bool one_thread) {
  const Floats a(left), b(right), c(out);
  const Bias start(bias, c);
  if (!a.fits || !b.fits || !c.fits || !start.fits || a.rows * b.columns * a.columns > LARGE) return false;
  if (c.matrix.column != 1 || (b.matrix.column != 1 && b.matrix.row != 1)) return false;
  multiply(a.matrix, b.matrix, start.matrix, c.matrix, a.rows, b.columns, a.columns, one_thread);
  return true;
}

}  // namespace lightning_sink
