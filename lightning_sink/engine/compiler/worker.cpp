// A thread that does one thing after the other while the trainer's thread prepares the next.
//
// What it is given takes a millisecond or less, and a thread that sleeps is late by a tenth of that: the next thing is
// given before the present one has ended, and both threads look for some time whether it is their turn before they
// sleep.

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace lightning_sink {

// Lets go of the interpreter's lock.
class Released {
 public:
  Released() : state_(PyEval_SaveThread()) {}
  ~Released() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

class Worker {
 public:
  using Task = std::function<bool()>;  // tells whether tasks behind it may be done

  Worker() : thread_([this] { work(); }) {}
  ~Worker() {
    wait();
    set([this] { stopping_ = true; });
    thread_.join();
  }

  bool is_of_this_process() const { return process_ == getpid(); }

  // Takes a task, to be done behind those that it was given before; returns its number.
  int64_t take(Task task) {
    set([&] {
      tasks_.push_back(std::move(task));
      ++given_;
    });
    return given_;
  }
  // Returns when a task has been done, or dropped behind one that failed; lets go of the interpreter's lock meanwhile.
  void wait(int64_t number) {
    if (ended_ >= number) return;
    const Released unlocked;
    until([&] { return ended_ >= number; });
  }
  void wait() { wait(given_); }

 private:
  static constexpr std::chrono::microseconds PATIENCE{200};

  void work() {
#ifdef __linux__
    pthread_setname_np(pthread_self(), "lightning_sink");  // what `top -H` and /proc show
#endif
    for (bool goes_on = true;;) {
      until([this] { return stopping_ || ended_ < given_; });
      if (stopping_) return;
      Task task;
      set([&] {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      });
      goes_on = goes_on && task();
      set([this] { ++ended_; });
    }
  }
  template <class Change>
  void set(Change change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    change();
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

  const pid_t process_ = getpid();
  std::atomic<int64_t> given_{0}, ended_{0};
  std::atomic<bool> stopping_{false};
  std::deque<Task> tasks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace lightning_sink
