/* How gpu.c calls AMD's driver. */
#include "model.h"

static const char *const libraries[] = {"libamdhip64.so",   "libamdhip64.so.7", "libamdhip64.so.6",
                                        "amdhip64_7.dll", "amdhip64_6.dll",   0};
static const char *const functions[] = {
    "hipInit", "hipDeviceGet", "hipDeviceGetAttribute", "hipDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRelease",
    "hipCtxGetCurrent", "hipCtxSetCurrent", "hipStreamCreateWithFlags", "hipStreamDestroy", "hipStreamSynchronize",
    "hipMalloc", "hipFree", "hipMemsetD8Async", "hipMemcpyHtoDAsync", "hipMemcpyDtoHAsync",
    "hipMemcpyDtoDAsync", "hipModuleLoadData",
    "hipModuleUnload", "hipModuleGetFunction", "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",
    "hipModuleLaunchCooperativeKernel", ""};
/* hipDeviceAttributeMultiprocessorCount, hipDeviceAttributeWallClockRate; kernels need no leave for shared memory */
const rammer_driver rammer_rocm = {libraries, functions, 63, 10017, 100000, 0};
