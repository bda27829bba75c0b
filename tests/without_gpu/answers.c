// Calls of which nobody here needs more than an answer: that all is well, or that there is no such thing (801).
#define WELL(name) \
  int name() { return 0; }
#define NONE(name) \
  int name() { return 801; }

#ifdef RUNTIME
WELL(cudaFuncSetAttribute)
WELL(cudaProfilerStart)
WELL(cudaProfilerStop)
WELL(cudaDeviceEnablePeerAccess)
WELL(cudaKernelSetAttributeForDevice)
WELL(cudaMemPoolSetAttribute)
WELL(cudaMemPoolSetAccess)
WELL(cudaMemPoolTrimTo)
WELL(cudaDeviceSetGraphMemAttribute)
NONE(cudaDeviceGetDefaultMemPool)
NONE(cudaDeviceGetGraphMemAttribute)
NONE(cudaGetSymbolAddress)
NONE(cudaIpcCloseMemHandle)
NONE(cudaIpcGetEventHandle)
NONE(cudaIpcGetMemHandle)
NONE(cudaIpcOpenEventHandle)
NONE(cudaIpcOpenMemHandle)
NONE(cudaLibraryLoadData)
NONE(cudaLibraryLoadFromFile)
NONE(cudaLibraryGetKernel)
NONE(cudaMallocManaged)
NONE(cudaMemPoolGetAttribute)
#else
WELL(cuCtxGetLimit)
WELL(cuCtxSetLimit)
WELL(cuLinkAddData_v2)
WELL(cuLinkComplete)
WELL(cuLinkCreate_v2)
WELL(cuLinkDestroy)
WELL(cuStreamIsCapturing)
WELL(cuTensorMapEncodeTiled)
#endif
