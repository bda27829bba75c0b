// A CUDA runtime without a device, preloaded in front of CUDA's own.
//
// Memory is the host's. A stream is a line of what it was given, none of which happens before somebody waits for it:
// the latest that CUDA allows, so that whatever is read, changed or given back too early shows. (FAKE_EAGER=1: at
// once.) FAKE_IDLE=1: graphs do nothing, and take no time. Captures refuse what CUDA's refuse. Kernels do nothing, but
// for the one that sets the condition of a loop in a graph; what operations compute is done by operations.cpp.
// FAKE_VERBOSE=1 says which calls gave an error.
#pragma once
#include <cuda_runtime_api.h>
#include <cuda.h>
#include <deque>
#include <vector>
#include <map>
#include <set>
#include <unordered_map>
#include <functional>
#include <mutex>
#include <memory>
#include <string>
#include <cstring>
#include <cstdlib>
#include <cstdio>
#include <chrono>
#include <dlfcn.h>
#undef cudaGetDeviceProperties
#define API extern "C" __attribute__((visibility("default")))
using Fn = std::function<void()>;
inline std::recursive_mutex mutex;
// Taken behind Python's own lock: what a stream does may be Python (interpreted.py), or let go of Python's objects.
struct Locked {
  Locked() {
    static auto is_there = (int (*)())dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    static auto ensure = (int (*)())dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    if (is_there && is_there()) python = ensure();
    mutex.lock();
  }
  ~Locked() {
    static auto release = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
    mutex.unlock();
    if (python >= 0) release(python);
  }
  int python = -1;
};
#define LOCK Locked lock
// Of what torch calls under the lock of its allocator, for which somebody who has Python's may wait. Nothing runs in it.
#define BRIEF std::lock_guard<std::recursive_mutex> lock(mutex)
inline thread_local cudaError_t last = cudaSuccess;
inline thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
inline bool eager() {
  static bool e = getenv("FAKE_EAGER") != nullptr;
  return e;
}
inline bool idle() {
  static bool i = getenv("FAKE_IDLE") != nullptr;
  return i;
}
inline bool verbose() {
  static bool e = getenv("FAKE_VERBOSE") != nullptr;
  return e;
}
inline cudaError_t err(cudaError_t e, const char* who) {
  if (e != cudaSuccess) {
    last = e;
    if (verbose() && e != cudaErrorNotReady) fprintf(stderr, "[fake] %s -> %d\n", who, (int)e);
  }
  return e;
}
#define RET(e) return err(e, __func__)

// What a graph does, in the order in which it was captured.
struct Node {
  Fn fn;
  cudaGraphNodeType type = cudaGraphNodeTypeKernel;
};
struct Graph {
  std::vector<Node*> nodes;
};
// A graph as it was when it was instantiated.
struct Exec {
  std::vector<Node*> nodes;
};
// A capture: the streams that have joined it, and those of them whose work nothing has waited for yet.
struct Capture {
  Graph* graph;
  unsigned long long id;
  cudaStreamCaptureMode mode;
  void* origin;
  pthread_t thread;
  bool invalid = false;
  std::set<void*> streams;
  std::set<void*> dirty;
};
// What a stream was given and has not done; how much it was given and has done in all.
struct Stream {
  std::deque<Fn> items;
  unsigned long long issued = 0, done = 0;
  int priority = 0;
  Capture* capture = nullptr;
};
// The place in a stream, or the capture, in which an event was recorded.
struct Event {
  Stream* stream = nullptr;
  unsigned long long at = 0;
  Capture* capture = nullptr;
  bool captured = false;
  bool recorded = false;
  unsigned flags = 0;
  std::chrono::steady_clock::time_point when;
  void* from = nullptr;
};
inline std::map<void*, std::shared_ptr<Stream>> streams;
inline std::set<Capture*> captures;
inline unsigned long long next_id = 1;
// The stream by the name that callers have for it; 1 and 2 are names of the default one.
inline Stream* stream_of(cudaStream_t s) {
  void* k = s;
  if (k == (void*)1 || k == (void*)2) k = nullptr;
  auto& p = streams[k];
  if (!p) p = std::make_shared<Stream>();
  return p.get();
}
// What a thread did for the device, in seconds on a processor.
inline thread_local double ran = 0;
inline double thread_time() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}
// Has a stream do what it was given first, up to so much of it.
inline void run_until(Stream* s, unsigned long long at) {
  double began = thread_time(), before = ran;
  while (s->done < at && !s->items.empty()) {
    Fn f = std::move(s->items.front());
    s->items.pop_front();
    f();
    s->done++;
  }
  ran = before + thread_time() - began;  // what it had another stream do is in it once
}
inline void run_all() {
  bool more = true;
  while (more) {
    more = false;
    for (auto& p : streams)
      if (!p.second->items.empty()) {
        run_until(p.second.get(), p.second->issued);
        more = true;
      }
  }
}
// Gives a stream something to do, or a graph where the stream is captured.
inline cudaError_t put(Stream* s, Fn f, cudaGraphNodeType t = cudaGraphNodeTypeKernel) {
  if (s->capture) {
    if (s->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    s->capture->graph->nodes.push_back(new Node{std::move(f), t});
    s->capture->dirty.insert(s);
    return cudaSuccess;
  }
  s->items.push_back(std::move(f));
  s->issued++;
  if (eager()) run_until(s, s->issued);
  return cudaSuccess;
}
// Whether a call is forbidden beside captures that are under way (cudaStreamCaptureMode).
inline bool unsafe() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  for (auto c : captures) {
    bool mine = pthread_equal(c->thread, pthread_self());
    if (c->mode == cudaStreamCaptureModeRelaxed) continue;
    if (mine) return true;
    if (c->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal) return true;
  }
  return false;
}
inline void invalidate_mine() {
  for (auto c : captures)
    if ((pthread_equal(c->thread, pthread_self()) && c->mode != cudaStreamCaptureModeRelaxed) ||
        c->mode == cudaStreamCaptureModeGlobal)
      c->invalid = true;
}
#define UNSAFE                              \
  if (unsafe()) {                           \
    invalidate_mine();                      \
    RET(cudaErrorStreamCaptureUnsupported); \
  }

// The same, and for what asks about a stream that is captured.
#define UNCAPTURED(stream)                  \
  if ((stream)->capture) {                  \
    (stream)->capture->invalid = true;      \
    RET(cudaErrorStreamCaptureUnsupported); \
  }                                         \
  UNSAFE

// The device's memory, as much as it has and as much as is given out; and the host's that copies need not wait for.
inline const size_t TOTAL = 3ull << 30;
inline size_t used = 0;
inline std::map<char*, size_t> dev, host;
int attribute(int a);

inline std::map<cudaGraphConditionalHandle, unsigned> conditions;  // of loops in graphs, by their handles

// What an operation came to that failed when its stream came to it: whoever waits is told, from then on.
inline cudaError_t failed = cudaSuccess;
