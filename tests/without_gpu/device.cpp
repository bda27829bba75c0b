// The device, its properties and errors.
#include "runtime.h"

API cudaError_t cudaGetDeviceCount(int* n) {
  *n = 1;
  return cudaSuccess;
}
API cudaError_t cudaGetDevice(int* d) {
  *d = 0;
  return cudaSuccess;
}
API cudaError_t cudaSetDevice(int d) { RET(d == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
API cudaError_t cudaDriverGetVersion(int* v) {
  *v = 13020;
  return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int* v) {
  *v = 13000;
  return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "NVIDIA H200");
  p->totalGlobalMem = TOTAL;
  p->major = 9;
  p->minor = 0;
  p->multiProcessorCount = 132;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->regsPerBlock = 65536;
  p->regsPerMultiprocessor = 65536;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = 232448;
  p->sharedMemPerMultiprocessor = 233472;
  p->l2CacheSize = 50 << 20;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->unifiedAddressing = 1;
  p->concurrentKernels = 1;
  p->asyncEngineCount = 3;
  p->memoryBusWidth = 5120;
  p->canMapHostMemory = 1;
  p->maxBlocksPerMultiProcessor = 32;
  p->textureAlignment = 512;
  p->cooperativeLaunch = 1;
  return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp* p, int d) { return cudaGetDeviceProperties(p, d); }
int attribute(int a) {
  switch (a) {
    case 1:
      return 1024;
    case 2:
    case 3:
      return 1024;
    case 4:
      return 64;
    case 5:
      return 2147483647;
    case 6:
    case 7:
      return 65535;
    case 8:
      return 49152;
    case 9:
      return 65536;
    case 10:
      return 32;
    case 12:
      return 65536;
    case 13:
      return 1980000;
    case 16:
      return 132;
    case 36:
      return 3201000;
    case 37:
      return 5120;
    case 38:
      return 50 << 20;
    case 39:
      return 2048;
    case 75:
      return 9;
    case 76:
      return 0;
    case 81:
      return 233472;
    case 82:
      return 65536;
    case 97:
      return 232448;
    case 95:
      return 1;
    case 41:
      return 1;
    case 115:
      return 1;
    case 106:
      return 32;
    default:
      return 0;
  }
}
API cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int) {
  *v = attribute((int)a);
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int* l, int* g) {
  if (l) *l = 0;
  if (g) *g = -5;
  return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int* c, int, int) {
  *c = 0;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char* b, int n, int) {
  snprintf(b, n, "0000:00:00.0");
  return cudaSuccess;
}
API cudaError_t cudaDeviceSynchronize() {
  LOCK;
  for (auto c : captures)
    if (c->mode == cudaStreamCaptureModeGlobal || pthread_equal(c->thread, pthread_self())) {
      c->invalid = true;
      RET(cudaErrorStreamCaptureUnsupported);
    }
  run_all();
  RET(failed);
}
API cudaError_t cudaGetLastError() {
  auto e = last;
  last = cudaSuccess;
  return e;
}
API cudaError_t cudaPeekAtLastError() { return last; }
API const char* cudaGetErrorName(cudaError_t e) {
  static thread_local char b[40];
  snprintf(b, 40, "cudaError%d", (int)e);
  return b;
}
API const char* cudaGetErrorString(cudaError_t e) {
  static thread_local char b[80];
  snprintf(b, 80,
           e == cudaErrorMemoryAllocation
               ? "out of memory"
               : (e == cudaErrorStreamCaptureUnsupported ? "operation not permitted when stream is capturing"
                                                         : "fake error %d"),
           (int)e);
  return b;
}
