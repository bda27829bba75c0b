// Kernels, none of which does anything but the one that sets the condition of a loop.
#include "runtime.h"

static std::unordered_map<const void*, std::string> names;
API void** __cudaRegisterFatBinary(void*) {
  static void* h[4];
  return h;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
API void __cudaRegisterFunction(void**, const char* hf, char*, const char* name, int, void*, void*, void*, void*,
                                int*) {
  names[hf] = name;
}
struct Conf {
  dim3 g, b;
  size_t sh;
  cudaStream_t s;
};
static thread_local std::vector<Conf> confs;
API unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t sh, cudaStream_t s) {
  confs.push_back({g, b, sh, s});
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* sh, void* s) {
  auto c = confs.back();
  confs.pop_back();
  *g = c.g;
  *b = c.b;
  *sh = c.sh;
  *(cudaStream_t*)s = c.s;
  return cudaSuccess;
}
static cudaError_t launch(const void* f, void** args, cudaStream_t s) {
  LOCK;
  auto i = names.find(f);
  std::string name = i == names.end() ? "?" : i->second;
  if (name.find("set_conditional_handle") != std::string::npos) {
    auto h = *(cudaGraphConditionalHandle*)args[0];
    auto p = *(const bool**)args[1];
    return put(stream_of(s), [=] { conditions[h] = *p; });
  }
  return put(stream_of(s), [] {});
}
API cudaError_t __cudaGetKernel(cudaKernel_t* k, const void* f) {
  *k = (cudaKernel_t)f;
  return cudaSuccess;
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3, dim3, void** a, size_t, cudaStream_t s) {
  RET(launch((const void*)k, a, s));
}
API cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t k, dim3, dim3, void** a, size_t, cudaStream_t s) {
  RET(launch((const void*)k, a, s));
}
API cudaError_t cudaLaunchKernel(const void* f, dim3, dim3, void** a, size_t, cudaStream_t s) { RET(launch(f, a, s)); }
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void** a) {
  RET(launch(f, a, c->stream));
}
API cudaError_t cudaLaunchCooperativeKernel(const void* f, dim3, dim3, void** a, size_t, cudaStream_t s) {
  RET(launch(f, a, s));
}
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->binaryVersion = 90;
  a->ptxVersion = 90;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void*, int, size_t) {
  *n = 2;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int, size_t, unsigned) {
  *n = 2;
  return cudaSuccess;
}
// driver entry points
API cudaError_t cudaGetDriverEntryPointByVersion(const char* n, void** f, unsigned, unsigned long long,
                                                 cudaDriverEntryPointQueryResult* q) {
  static void* h = dlopen(getenv("WITHOUT_GPU_DRIVER"), RTLD_NOW | RTLD_GLOBAL);
  *f = h ? dlsym(h, n) : nullptr;
  if (q) *q = *f ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  if (!*f && verbose()) fprintf(stderr, "[fake] no entry point %s\n", n);
  return *f ? cudaSuccess : cudaErrorSymbolNotFound;
}
// for the driver's launches: put what a kernel does on a stream
API int fake_put(void* s, void (*f)(void*), void* d) {
  LOCK;
  return (int)err(put(stream_of((cudaStream_t)s), [=] { f(d); }), "cuLaunchKernel");
}
API int fake_attribute(int a) { return attribute(a); }
// for operations: one has failed
API void fake_fail() { failed = cudaErrorLaunchFailure; }
// for clocks: what the calling thread did for the device is none of the host's time
API double fake_ran() { return ran; }
