// As much of a CUDA driver as torch and Triton ask for: modules hold nothing, and what they launch does nothing.
#include <cuda.h>
#include <string.h>
#include <stdlib.h>
#include <stdio.h>
#include <stdint.h>
#include <dlfcn.h>
extern int fake_put(void*, void (*)(void*), void*);
extern int fake_attribute(int);
static void nothing(void* d) {}
#undef cuDeviceTotalMem
#undef cuModuleGetGlobal
CUresult cuInit(unsigned f) { return 0; }
CUresult cuDriverGetVersion(int* v) {
  *v = 13020;
  return 0;
}
CUresult cuDeviceGetCount(int* n) {
  *n = 1;
  return 0;
}
CUresult cuDeviceGet(CUdevice* d, int i) {
  *d = 0;
  return 0;
}
CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice d) {
  *v = fake_attribute(a);
  return 0;
}
CUresult cuCtxGetCurrent(CUcontext* c) {
  *c = (CUcontext)1;
  return 0;
}
CUresult cuCtxSetCurrent(CUcontext c) { return 0; }
CUresult cuCtxGetDevice(CUdevice* d) {
  *d = 0;
  return 0;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned* f, int* a) {
  *f = 0;
  *a = 1;
  return 0;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice d) {
  *c = (CUcontext)1;
  return 0;
}
CUresult cuModuleLoad(CUmodule* m, const char* n) {
  *m = (CUmodule)1;
  return 0;
}
CUresult cuModuleLoadData(CUmodule* m, const void* n) {
  *m = (CUmodule)1;
  return 0;
}
CUresult cuModuleLoadDataEx(CUmodule* m, const void* n, unsigned k, CUjit_option* o, void** v) {
  *m = (CUmodule)1;
  return 0;
}
CUresult cuModuleUnload(CUmodule m) { return 0; }
CUresult cuModuleGetFunction(CUfunction* f, CUmodule m, const char* n) {
  *f = (CUfunction)strdup(n);
  return 0;
}
CUresult cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction f) {
  *v = a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return 0;
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) { return 0; }
CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache c) { return 0; }
static int go(CUstream s) { return fake_put(s, nothing, 0) ? 900 : 0; }
CUresult cuLaunchKernel(CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g,
                        unsigned sh, CUstream s, void** p, void** x) {
  return go(s);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** p, void** x) { return go(c->hStream); }
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g,
                                   unsigned sh, CUstream s, void** p) {
  return go(s);
}
CUresult cuGetErrorString(CUresult r, const char** s) {
  *s = "fake error";
  return 0;
}
CUresult cuGetErrorName(CUresult r, const char** s) {
  *s = "fake error";
  return 0;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction f, int b, size_t s) {
  *n = 2;
  return 0;
}
CUresult cuOccupancyMaxActiveClusters(int* n, CUfunction f, const CUlaunchConfig* c) {
  *n = 2;
  return 0;
}
CUresult cuPointerGetAttribute(void* d, CUpointer_attribute a, CUdeviceptr p) {
  *(uint64_t*)d = p;
  return 0;
}

CUresult cuStreamGetCtx(CUstream s, CUcontext* c) {
  *c = (CUcontext)1;
  return 0;
}
CUresult cuModuleGetGlobal_v2(CUdeviceptr* p, size_t* n, CUmodule m, const char* s) {
  static char b[64];
  *p = (CUdeviceptr)b;
  *n = 8;
  return 0;
}
CUresult cuGetProcAddress_v2(const char* s, void** f, int v, cuuint64_t fl, CUdriverProcAddressQueryResult* q) {
  *f = dlsym(RTLD_DEFAULT, s);
  if (q) *q = *f ? 0 : 1;
  return *f ? 0 : 500;
}
