// Streams and events.
#include "runtime.h"

static cudaError_t make(cudaStream_t* s, int pr) {
  LOCK;
  static uintptr_t next = 0x1000;
  auto k = (cudaStream_t)(next += 16);
  auto st = stream_of(k);
  st->priority = pr;
  *s = k;
  return cudaSuccess;
}
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int p) { return make(s, p); }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { return make(s, 0); }
API cudaError_t cudaStreamCreate(cudaStream_t* s) { return make(s, 0); }
API cudaError_t cudaStreamDestroy(cudaStream_t s) {
  LOCK;
  run_until(stream_of(s), stream_of(s)->issued);
  return cudaSuccess;
}
API cudaError_t cudaStreamGetPriority(cudaStream_t s, int* p) {
  LOCK;
  *p = stream_of(s)->priority;
  return cudaSuccess;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  LOCK;
  auto st = stream_of(s);
  UNCAPTURED(st);
  run_until(st, st->issued);
  RET(failed);
}
API cudaError_t cudaStreamQuery(cudaStream_t s) {
  BRIEF;
  auto st = stream_of(s);
  UNCAPTURED(st);
  return st->done == st->issued ? cudaSuccess : cudaErrorNotReady;
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e_, unsigned) {
  LOCK;
  auto st = stream_of(s);
  auto e = (Event*)e_;
  if (!e->recorded) return cudaSuccess;
  if (e->captured) {
    if (!captures.count(e->capture)) RET(cudaErrorStreamCaptureIsolation);
    if (st->capture && st->capture != e->capture) RET(cudaErrorStreamCaptureMerge);
    if (!st->capture) {
      st->capture = e->capture;
      e->capture->streams.insert(st);
    }
    e->capture->dirty.erase(e->from);
    e->capture->dirty.insert(st);
    return cudaSuccess;
  }
  if (st->capture) {
    st->capture->invalid = true;
    RET(cudaErrorStreamCaptureIsolation);
  }
  auto other = e->stream;
  auto at = e->at;
  return put(st, [=] { run_until(other, at); });
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* d) {
  LOCK;
  RET(put(stream_of(s), [=] { f(d); }, cudaGraphNodeTypeHost));
}
API cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void* d, unsigned) {
  LOCK;
  RET(put(stream_of(s), [=] { f(s, cudaSuccess, d); }));
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned f) {
  auto v = new Event;
  v->flags = f;
  *e = (cudaEvent_t)v;
  return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t e) {
  BRIEF;
  return cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t e_, cudaStream_t s, unsigned flags) {
  BRIEF;
  auto e = (Event*)e_;
  auto st = stream_of(s);
  if (st->capture && !(flags & cudaEventRecordExternal)) {
    if (st->capture->invalid) RET(cudaErrorStreamCaptureInvalidated);
    e->captured = true;
    e->capture = st->capture;
    e->recorded = true;
    e->from = st;
    return cudaSuccess;
  }
  e->captured = false;
  e->recorded = true;
  e->stream = st;
  auto r = put(st, [e] { e->when = std::chrono::steady_clock::now(); });
  e->at = st->issued;
  RET(r);
}
API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }
API cudaError_t cudaEventQuery(cudaEvent_t e_) {
  BRIEF;
  UNSAFE;
  auto e = (Event*)e_;
  if (e->captured) RET(cudaErrorCapturedEvent);
  return (!e->recorded || e->stream->done >= e->at) ? cudaSuccess : cudaErrorNotReady;
}
API cudaError_t cudaEventSynchronize(cudaEvent_t e_) {
  LOCK;
  UNSAFE;
  auto e = (Event*)e_;
  if (e->captured) RET(cudaErrorCapturedEvent);
  if (e->recorded) run_until(e->stream, e->at);
  RET(failed);
}
API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a_, cudaEvent_t b_) {
  LOCK;
  auto a = (Event*)a_, b = (Event*)b_;
  if ((a->flags | b->flags) & cudaEventDisableTiming) RET(cudaErrorInvalidResourceHandle);
  if (a->captured || b->captured) RET(cudaErrorCapturedEvent);
  if (!a->recorded || !b->recorded) RET(cudaErrorInvalidResourceHandle);
  if (a->stream->done < a->at || b->stream->done < b->at) RET(cudaErrorNotReady);
  *ms = std::chrono::duration<float, std::milli>(b->when - a->when).count();
  return cudaSuccess;
}
API cudaError_t cudaEventElapsedTime_v2(float* ms, cudaEvent_t a, cudaEvent_t b) {
  return cudaEventElapsedTime(ms, a, b);
}
