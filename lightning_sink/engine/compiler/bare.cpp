// Tensors of a step that runs again and again: a pointer, a shape, and memory that the next step fills again.
//
// A tensor of torch's costs a generated step 100 ns for each that it makes, half of it malloc. In the loop nobody sees
// them but the step itself. `generated.py` compiles the generated step a second time with these types in the place of
// torch's, and the loop runs that for all of its steps but the last. Blocks are not shared between threads.

#include <deque>

namespace lightning_sink {

// What a tensor looks like. Sizes and strides belong to somebody else: to a tensor of torch's, or to the generated
// step, where they are static.
struct View {
  char* data = nullptr;
  int64_t dimensions = 0;
  const int64_t *sizes = nullptr, *strides = nullptr;
  int32_t dtype = 0;

  View() = default;
  explicit View(AtenTensorHandle tensor) {
    void* place = nullptr;
    int64_t *of_sizes = nullptr, *of_strides = nullptr;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(tensor, &place));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor, &dimensions));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor, &of_sizes));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor, &of_strides));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor, &dtype));
    data = static_cast<char*>(place);
    sizes = of_sizes;
    strides = of_strides;
  }
};

namespace bare {

constexpr size_t LINE = 64;  // bytes of a cache line: where a block begins, and what its header takes

struct Shelf;

struct Block {
  Shelf* shelf;  // where it goes when nobody holds it any more
  Block* below;  // while it lies there
  int64_t holders;
  char* data() { return reinterpret_cast<char*>(this) + LINE; }
};

static_assert(sizeof(Block) <= LINE);

// Memory of tensors that are gone, of one size, the last one on top: that is the one in the cache.
struct Shelf {
  size_t bytes;
  Block* top = nullptr;
};

class Pool {
 public:
  ~Pool() { clear(); }

  Block* get(size_t bytes) {
    Shelf& shelf = of_size((bytes + LINE - 1) / LINE * LINE);
    Block* block = shelf.top;
    if (block == nullptr) {
      void* memory = std::aligned_alloc(LINE, LINE + shelf.bytes);
      if (memory == nullptr) throw std::bad_alloc();
      return new (memory) Block{&shelf, nullptr, 1};
    }
    shelf.top = block->below;
    block->holders = 1;
    return block;
  }
  static void put(Block* block) { block->below = std::exchange(block->shelf->top, block); }
  void clear() {
    for (Shelf& shelf : shelves_) {
      while (shelf.top != nullptr) std::free(std::exchange(shelf.top, shelf.top->below));
    }
  }

 private:
  Shelf& of_size(size_t bytes) {
    for (Shelf& shelf : shelves_) {
      if (shelf.bytes == bytes) return shelf;
    }
    return shelves_.emplace_back(Shelf{bytes});
  }
  std::deque<Shelf> shelves_;  // each stays where it is
};

inline thread_local Pool pool;

// A tensor whose part in its block, if it has one, is to be given to a `Tensor`.
struct Handle : View {
  Block* block = nullptr;
};

class Tensor : public View {
 public:
  Tensor() = default;
  explicit Tensor(AtenTensorHandle tensor) : View(tensor) {}
  explicit Tensor(Handle handle) : View(handle), block_(handle.block) {}
  Tensor(Tensor&& other) noexcept : View(other), block_(std::exchange(other.block_, nullptr)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    reset();
    static_cast<View&>(*this) = other;
    block_ = std::exchange(other.block_, nullptr);
    return *this;
  }
  Tensor& operator=(Handle handle) { return *this = Tensor(handle); }
  ~Tensor() { reset(); }

  void* data_ptr() const { return data; }
  void reset() {
    if (block_ != nullptr && --block_->holders == 0) Pool::put(block_);
    block_ = nullptr;
  }
  Handle release() { return {*this, std::exchange(block_, nullptr)}; }
  Handle share() const {
    if (block_ != nullptr) ++block_->holders;
    return {*this, block_};
  }

 private:
  Block* block_ = nullptr;
};

// Returns the bytes from a tensor's first element to its last one.
inline int64_t bytes_of(int64_t dimensions, const int64_t* sizes, const int64_t* strides, int32_t dtype) {
  int64_t last = 0;
  for (int64_t i = 0; i < dimensions; ++i) last += sizes[i] == 0 ? 0 : (sizes[i] - 1) * strides[i];
  return (last + 1) * aoti_torch_dtype_element_size(dtype);
}

// What generated code calls, under the names that it has there.

inline AOTITorchError empty_strided(
    int64_t dimensions, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t, int32_t, Handle* result) {
  result->block = pool.get(bytes_of(dimensions, sizes, strides, dtype));
  result->data = result->block->data();
  result->dimensions = dimensions;
  result->sizes = sizes;
  result->strides = strides;
  result->dtype = dtype;
  return AOTI_TORCH_SUCCESS;
}

inline AOTITorchError new_tensor_handle(const Tensor& tensor, Handle* result) {
  *result = tensor.share();
  return AOTI_TORCH_SUCCESS;
}

inline Tensor reinterpret_tensor_wrapper(
    const Tensor& tensor, int64_t dimensions, const int64_t* sizes, const int64_t* strides, int64_t offset) {
  Handle handle = tensor.share();
  handle.data += offset * aoti_torch_dtype_element_size(tensor.dtype);
  handle.dimensions = dimensions;
  handle.sizes = sizes;
  handle.strides = strides;
  return Tensor(handle);
}

inline Tensor wrap_with_raii_handle_if_needed(Tensor&& tensor) { return std::move(tensor); }

inline Tensor* steal_from_raw_handles_to_raii_handles(Tensor* tensors, size_t) { return tensors; }

// A tensor of torch's on the same memory, for a call of the library's.
class Lent {
 public:
  explicit Lent(const View& view) {
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob(
        view.data, view.dimensions, view.sizes, view.strides, 0, view.dtype, aoti_torch_device_type_cpu(), 0,
        &tensor_));
  }
  Lent(const Lent&) = delete;
  ~Lent() { aoti_torch_delete_tensor_object(tensor_); }
  operator AtenTensorHandle() const { return tensor_; }

 private:
  AtenTensorHandle tensor_ = nullptr;
};

// Copies a tensor into one of torch's.
inline AtenTensorHandle copy(const Tensor& tensor) {
  AtenTensorHandle result = nullptr;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      tensor.dimensions, tensor.sizes, tensor.strides, tensor.dtype, aoti_torch_device_type_cpu(), 0, &result));
  int64_t bytes = 0;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(result, &bytes));
  std::memcpy(View(result).data, tensor.data, bytes);
  return result;
}

}  // namespace bare
}  // namespace lightning_sink
