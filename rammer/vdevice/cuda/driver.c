/* How gpu.c calls NVIDIA's driver. */
#include "model.h"

static const char *const libraries[] = {"libcuda.so.1", "nvcuda.dll", 0};
static const char *const functions[] = {
    "cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent", "cuCtxSetCurrent", "cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize",
    "cuMemAlloc_v2", "cuMemFree_v2", "cuMemsetD8Async", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",    "cuModuleLoadData", "cuModuleUnload", "cuModuleGetFunction", "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuLaunchCooperativeKernel", "cuFuncSetAttribute"};
/* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, none, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
const rammer_driver rammer_cuda = {libraries, functions, 16, 0, 0, 8};
