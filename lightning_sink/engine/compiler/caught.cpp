// Errors of kernels that run on several threads: an exception that leaves a parallel region ends the process.
// `kernels.py` has each part of such a region keep its error here; the kernel throws the first one at its end.

#include <exception>
#include <mutex>

namespace lightning_sink {

class Caught {
 public:
  void keep() noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (!first_) first_ = std::current_exception();
  }

  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
};

}  // namespace lightning_sink

