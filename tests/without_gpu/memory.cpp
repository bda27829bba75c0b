// Memory, and copies: what comes from pageable memory is read at once, and what goes there is waited for.
#include "runtime.h"

API cudaError_t cudaMalloc(void** p, size_t n) {
  BRIEF;
  UNSAFE;
  if (used + n > TOTAL) RET(cudaErrorMemoryAllocation);
  void* m = aligned_alloc(512, (n + 511) / 512 * 512);
  memset(m, 0xff, n);
  dev[(char*)m] = n;
  used += n;
  *p = m;
  return cudaSuccess;
}
API cudaError_t cudaFree(void* p) {
  LOCK;
  if (!p) return cudaSuccess;
  UNSAFE;
  run_all();
  auto i = dev.find((char*)p);
  if (i == dev.end()) RET(cudaErrorInvalidValue);
  used -= i->second;
  memset(p, 0xff, i->second);
  dev.erase(i);
  free(p);
  return cudaSuccess;
}
API cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) {
  LOCK;
  UNSAFE;
  void* m = aligned_alloc(512, (n + 511) / 512 * 512);
  memset(m, 0xff, n);
  host[(char*)m] = n;
  *p = m;
  return cudaSuccess;
}
API cudaError_t cudaMallocHost(void** p, size_t n) { return cudaHostAlloc(p, n, 0); }
API cudaError_t cudaFreeHost(void* p) {
  LOCK;
  if (!p) return cudaSuccess;
  UNSAFE;
  run_all();
  host.erase((char*)p);
  free(p);
  return cudaSuccess;
}
API cudaError_t cudaHostRegister(void* p, size_t n, unsigned) {
  LOCK;
  host[(char*)p] = n;
  return cudaSuccess;
}
API cudaError_t cudaHostUnregister(void* p) {
  LOCK;
  host.erase((char*)p);
  return cudaSuccess;
}
static bool in(std::map<char*, size_t>& m, const void* p) {
  auto n = m.upper_bound((char*)p);
  return n != m.begin() && (char*)p < std::prev(n)->first + std::max<size_t>(std::prev(n)->second, 1);
}
API cudaError_t cudaMemGetInfo(size_t* f, size_t* t) {
  LOCK;
  *f = TOTAL - used;
  *t = TOTAL;
  return cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  LOCK;
  memset(a, 0, sizeof *a);
  a->device = 0;
  if (in(dev, p)) {
    a->type = cudaMemoryTypeDevice;
    a->devicePointer = (void*)p;
  } else if (in(host, p)) {
    a->type = cudaMemoryTypeHost;
    a->hostPointer = a->devicePointer = (void*)p;
  } else
    a->type = cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
static cudaError_t copy(void* d, const void* s, size_t n, Stream* st) {
  bool dd = in(dev, d), sd = in(dev, s), hp = in(host, sd ? d : s);
  if (!n) return cudaSuccess;
  if (st->capture) {
    if (!((dd && sd) || hp)) {
      st->capture->invalid = true;
      return cudaErrorStreamCaptureUnsupported;
    }  // pageable memory
    return put(st, [=] { memmove(d, s, n); }, cudaGraphNodeTypeMemcpy);
  }
  if (dd && sd) return put(st, [=] { memmove(d, s, n); });
  if (dd && !hp) {
    auto tmp = std::make_shared<std::string>((const char*)s, n);
    return put(st, [=] { memcpy(d, tmp->data(), n); });
  }  // staged
  if (sd && !hp) {
    put(st, [=] { memmove(d, s, n); });
    run_until(st, st->issued);
    return cudaSuccess;
  }
  return put(st, [=] { memmove(d, s, n); });
}
API cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind, cudaStream_t st) {
  LOCK;
  RET(copy(d, s, n, stream_of(st)));
}
API cudaError_t cudaMemcpyPeerAsync(void* d, int, const void* s, int, size_t n, cudaStream_t st) {
  LOCK;
  RET(copy(d, s, n, stream_of(st)));
}
API cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind) {
  LOCK;
  UNSAFE;
  run_all();
  memmove(d, s, n);
  return cudaSuccess;
}
API cudaError_t cudaMemcpy2DAsync(void* d, size_t dp, const void* s, size_t sp, size_t w, size_t h, cudaMemcpyKind,
                                  cudaStream_t st) {
  LOCK;
  RET(put(
      stream_of(st),
      [=] {
        for (size_t i = 0; i < h; i++) memmove((char*)d + i * dp, (const char*)s + i * sp, w);
      },
      cudaGraphNodeTypeMemcpy));
}
API cudaError_t cudaMemset(void* d, int v, size_t n) {
  LOCK;
  UNSAFE;
  run_all();
  memset(d, v, n);
  return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void* d, int v, size_t n, cudaStream_t st) {
  LOCK;
  RET(put(stream_of(st), [=] { memset(d, v, n); }, cudaGraphNodeTypeMemset));
}
API cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t) { return cudaMalloc(p, n); }
API cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return cudaFree(p); }
API cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
