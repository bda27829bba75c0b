// Captures of streams.
#include "runtime.h"

static cudaError_t begin(cudaStream_t s, Graph* g, cudaStreamCaptureMode m) {
  auto st = stream_of(s);
  if (s == nullptr || st->capture) RET(cudaErrorStreamCaptureUnsupported);
  auto c = new Capture{g, next_id++, m, st, pthread_self()};
  c->streams.insert(st);
  st->capture = c;
  captures.insert(c);
  return cudaSuccess;
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode m) {
  LOCK;
  return begin(s, new Graph, m);
}
API cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t s, cudaGraph_t g, const cudaGraphNode_t*,
                                              const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode m) {
  LOCK;
  return begin(s, (Graph*)g, m);
}
API cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* out) {
  LOCK;
  auto st = stream_of(s);
  auto c = st->capture;
  if (!c) RET(cudaErrorIllegalState);
  if (c->origin != st) {
    c->invalid = true;
    RET(cudaErrorStreamCaptureUnmatched);
  }
  if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self()))
    RET(cudaErrorStreamCaptureWrongThread);
  c->dirty.erase(st);
  bool unjoined = !c->dirty.empty();
  for (auto x : c->streams) ((Stream*)x)->capture = nullptr;
  captures.erase(c);
  if (c->invalid || unjoined) {
    if (out) *out = nullptr;
    RET(c->invalid ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined);
  }
  if (out) *out = (cudaGraph_t)c->graph;
  return cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* o) {
  BRIEF;
  auto st = stream_of(s);
  *o = !st->capture           ? cudaStreamCaptureStatusNone
       : st->capture->invalid ? cudaStreamCaptureStatusInvalidated
                              : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
static cudaError_t info(cudaStream_t s, cudaStreamCaptureStatus* o, unsigned long long* id, cudaGraph_t* g,
                        const cudaGraphNode_t** deps, const cudaGraphEdgeData** edges, size_t* n) {
  BRIEF;
  cudaStreamIsCapturing(s, o);
  auto st = stream_of(s);
  static thread_local cudaGraphNode_t lastn;
  if (st->capture) {
    if (id) *id = st->capture->id;
    if (g) *g = (cudaGraph_t)st->capture->graph;
    auto& v = st->capture->graph->nodes;
    lastn = v.empty() ? nullptr : (cudaGraphNode_t)v.back();
    if (deps) *deps = &lastn;
    if (edges) *edges = nullptr;
    if (n) *n = v.empty() ? 0 : 1;
  }
  return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* o, unsigned long long* id,
                                         cudaGraph_t* g, const cudaGraphNode_t** d, const cudaGraphEdgeData** e,
                                         size_t* n) {
  return info(s, o, id, g, d, e, n);
}
API cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t s, cudaStreamCaptureStatus* o, unsigned long long* id,
                                            cudaGraph_t* g, const cudaGraphNode_t** d, const cudaGraphEdgeData** e,
                                            size_t* n) {
  return info(s, o, id, g, d, e, n);
}
API cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t s, cudaStreamCaptureStatus* o, unsigned long long* id,
                                            cudaGraph_t* g, const cudaGraphNode_t** d, size_t* n) {
  return info(s, o, id, g, d, nullptr, n);
}
API cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                                                    unsigned) {
  return cudaSuccess;
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* m) {
  std::swap(*m, thread_mode);
  return cudaSuccess;
}
