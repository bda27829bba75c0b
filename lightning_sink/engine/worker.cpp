// A thread that does one thing after the other while the trainer's thread prepares the next.
//
// What it is given takes a millisecond or less, and a thread that sleeps is late by a tenth of that: both threads look
// for some time whether it is their turn before they sleep.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace lightning_sink {

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

class Worker {
 public:
  Worker() : thread_([this] { work(); }) {}
  ~Worker() {
    wait();
    set(STOPPING);
    thread_.join();
  }

  // Begins a task; there must be none under way.
  void start(std::function<void()> task) {
    task_ = std::move(task);
    set(BUSY);
  }
  // Returns when no task is under way; lets go of the interpreter's lock meanwhile.
  void wait() {
    if (state_ != BUSY) return;
    const Unlocked unlocked;
    until([this] { return state_ != BUSY; });
  }

 private:
  enum State { IDLE, BUSY, STOPPING };
  static constexpr std::chrono::microseconds PATIENCE{200};

  void work() {
    for (;;) {
      until([this] { return state_ != IDLE; });
      if (state_ == STOPPING) return;
      task_();
      set(IDLE);
    }
  }
  void set(State state) {
    const std::lock_guard<std::mutex> lock(mutex_);
    state_ = state;
    changed_.notify_all();
  }
  template <class Condition>
  void until(Condition holds) {
    const auto end = std::chrono::steady_clock::now() + PATIENCE;
    while (std::chrono::steady_clock::now() < end) {
      if (holds()) return;
      std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, holds);
  }

  std::atomic<State> state_{IDLE};
  std::function<void()> task_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace lightning_sink
