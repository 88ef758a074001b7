// A libcuda that keeps what it is asked in a log, and memory of the host in place of a card's. Its functions have the
// prototypes of cuda.h, or do not compile.
#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <type_traits>

namespace {
std::string calls;
int capability_major = 9, capability_minor = 0, cards = 1, cubin_result = 0, ptx_result = 0, launch_result = 0;
int driver_version = 12080, capture_result = 0, instantiate_result = 0;
std::map<uint64_t, size_t> memory;
uint64_t next_handle = 0x1000;
size_t room = size_t(1) << 30;

bool inside(uint64_t address) {
  auto after = memory.upper_bound(address);
  return after != memory.begin() && address < std::prev(after)->first + std::prev(after)->second;
}
void note(const std::string& call) { calls += call + "\n"; }
CUresult result(int number) { return static_cast<CUresult>(number); }
template <typename Handle> Handle handle(uint64_t value) { return reinterpret_cast<Handle>(value); }
template <typename Handle> std::string number(Handle value) { return std::to_string(reinterpret_cast<uint64_t>(value)); }
// The launches of the tests pass three arguments: addresses, numbers, or tensor maps, which begin with 7000.
std::string passed(void** arguments) {
  std::string text = ":";
  for (int i = 0; i < 3; ++i) {
    int64_t value = *static_cast<int64_t*>(arguments[i]);
    text += memory.count(uint64_t(value)) ? " buffer" : " " + std::to_string(value);
  }
  return text;
}
}  // namespace

extern "C" {
// For the tests.
const char* fake_calls();
void fake_reset();
void fake_driver(int version);
void fake_captures(int capture, int instantiate);
void fake_capability(int major, int minor);
void fake_cards(int count);
void fake_results(int cubin, int ptx, int launch);
int fake_live();
const size_t* fake_layouts();
CUresult cuEventElapsedTime_v2(float*, CUevent, CUevent);

const char* fake_calls() { return calls.c_str(); }
void fake_reset() {
  calls.clear();
  capability_major = 9, capability_minor = 0, cards = 1, cubin_result = ptx_result = launch_result = 0;
  driver_version = 12080, capture_result = instantiate_result = 0;
  for (auto& each : memory) std::free(reinterpret_cast<void*>(each.first));
  memory.clear();
}
void fake_driver(int version) { driver_version = version; }
void fake_captures(int capture, int instantiate) { capture_result = capture, instantiate_result = instantiate; }
void fake_capability(int major, int minor) { capability_major = major, capability_minor = minor; }
void fake_cards(int count) { cards = count; }
void fake_results(int cubin, int ptx, int launch) { cubin_result = cubin, ptx_result = ptx, launch_result = launch; }
int fake_live() { return int(memory.size()); }

CUresult cuInit(unsigned int) { note("init"); return result(cards < 0 ? 100 : 0); }
CUresult cuDeviceGetCount(int* count) { *count = cards; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int number) { *device = number; return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char* name, int size, CUdevice) { strncpy(name, "Fake 9000", size_t(size)); return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? capability_major :
           which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? capability_minor :
           which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 114 : -1;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = handle<CUcontext>(0xC0);
  note("retain");
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { note("release"); return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { note("current"); return CUDA_SUCCESS; }
CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size) {
  if (size > room) return CUDA_ERROR_OUT_OF_MEMORY;
  void* data = std::aligned_alloc(256, (size + 255) / 256 * 256);
  *address = reinterpret_cast<CUdeviceptr>(data);
  memory[*address] = size;
  note("alloc " + std::to_string(size));
  return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr address) {
  if (!memory.erase(address)) return CUDA_ERROR_INVALID_VALUE;
  std::free(reinterpret_cast<void*>(address));
  note("free");
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t size, CUstream) {
  if (!inside(to)) return CUDA_ERROR_INVALID_VALUE;
  memcpy(reinterpret_cast<void*>(to), from, size);
  note("in " + std::to_string(size));
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t size, CUstream) {
  if (!inside(from)) return CUDA_ERROR_INVALID_VALUE;
  memcpy(to, reinterpret_cast<void*>(from), size);
  note("out " + std::to_string(size));
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream) {
  if (!inside(from) || !inside(to)) return CUDA_ERROR_INVALID_VALUE;
  memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size);
  note("across " + std::to_string(size));
  return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  *stream = handle<CUstream>(next_handle++);
  note("stream " + std::to_string(flags));
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream) { note("synchronize"); return CUDA_SUCCESS; }
CUresult cuStreamDestroy_v2(CUstream) { note("stream gone"); return CUDA_SUCCESS; }
CUresult cuStreamWaitEvent(CUstream, CUevent event, unsigned int) { note("wait " + number(event)); return CUDA_SUCCESS; }
CUresult cuEventCreate(CUevent* event, unsigned int) { *event = handle<CUevent>(7); return CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent event, CUstream) { note("record " + number(event)); return CUDA_SUCCESS; }
CUresult cuEventSynchronize(CUevent) { note("until event"); return CUDA_SUCCESS; }
CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent, CUevent) { *milliseconds = 2.5f; return CUDA_SUCCESS; }
#undef cuEventElapsedTime  // the first version is what older drivers have, too
CUresult cuEventElapsedTime(float*, CUevent, CUevent);
CUresult cuEventElapsedTime(float* milliseconds, CUevent first, CUevent last) {
  return cuEventElapsedTime_v2(milliseconds, first, last);
}
static_assert(std::is_same<decltype(&cuEventElapsedTime), decltype(&cuEventElapsedTime_v2)>::value, "as before");
CUresult cuEventDestroy_v2(CUevent) { note("event gone"); return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) { *version = driver_version; return CUDA_SUCCESS; }
CUresult cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode mode) {
  note("begin " + std::to_string(int(mode)));
  return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream, CUgraph* graph) {
  *graph = handle<CUgraph>(0x61);
  note("end");
  return result(capture_result);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  note("instantiate " + number(graph) + " " + std::to_string(flags));
  *executable = handle<CUgraphExec>(0x62);
  return result(instantiate_result);
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream) {
  note("graph " + number(executable));
  return result(launch_result);
}
CUresult cuGraphExecDestroy(CUgraphExec executable) {
  note("executable gone " + number(executable));
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) { note("graph gone " + number(graph)); return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  note("cubin " + std::string(static_cast<const char*>(image)));
  *module = handle<CUmodule>(next_handle++);
  return result(cubin_result);
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count, CUjit_option* options,
                            void** values) {
  note("ptx " + std::string(static_cast<const char*>(image)).substr(0, 12));
  for (unsigned i = 0; i < count; ++i)
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER && ptx_result)
      strcpy(static_cast<char*>(values[i]), "ptxas: line 3: no such instruction");
  *module = handle<CUmodule>(next_handle++);
  return result(ptx_result);
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  if (!strcmp(name, "missing")) return CUDA_ERROR_NOT_FOUND;
  *function = handle<CUfunction>(next_handle++);
  note("function " + std::string(name));
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { note("unload"); return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute attribute, int value) {
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
  note("shared " + std::to_string(value));
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  auto place = reinterpret_cast<uint64_t>(address);
  if (reinterpret_cast<uint64_t>(map) % 64 || place % 16) return CUDA_ERROR_INVALID_VALUE;
  auto within = std::prev(memory.upper_bound(place));
  std::string text = "map " + std::to_string(int(type)) + " from " + std::to_string(place - within->first) + ":";
  for (cuuint32_t i = 0; i < rank; ++i) text += " " + std::to_string(sizes[i]);
  text += " by";
  for (cuuint32_t i = 0; i + 1 < rank; ++i) {
    if (strides[i] % 16) return CUDA_ERROR_INVALID_VALUE;
    text += " " + std::to_string(strides[i]);
  }
  text += " box";
  for (cuuint32_t i = 0; i < rank; ++i) text += " " + std::to_string(box[i]) + "/" + std::to_string(steps[i]);
  for (int each : {int(interleave), int(swizzle), int(promotion), int(fill)}) text += " " + std::to_string(each);
  note(text);
  for (unsigned i = 0; i < sizeof map->opaque / sizeof *map->opaque; ++i) map->opaque[i] = 7000 + i;
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
                        unsigned int bz, unsigned int shared, CUstream, void** arguments, void** extra) {
  std::string text = "launch";
  for (unsigned each : {gx, gy, gz, bx, by, bz, shared}) text += " " + std::to_string(each);
  if (extra) text += " extra";
  note(text + passed(arguments));
  return result(launch_result);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction, void** arguments, void** extra) {
  std::string text = "launch";
  for (unsigned each : {config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,
                        config->blockDimZ, config->sharedMemBytes})
    text += " " + std::to_string(each);
  if (extra) text += " extra";
  text += " in " + number(config->hStream);
  for (unsigned i = 0; i < config->numAttrs; ++i)
    text += " " + std::to_string(int(config->attrs[i].id)) + "=" +
            std::to_string(config->attrs[i].value.programmaticStreamSerializationAllowed);
  note(text + passed(arguments));
  return result(launch_result);
}
CUresult cuGetErrorName(CUresult number, const char** name) {
  *name = number == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : number == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" :
          number == 901 ? "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" : "CUDA_ERROR_OTHER";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult number, const char** text) {
  *text = number == 2 ? "out of memory" : number == 700 ? "an illegal memory access was encountered" : nullptr;
  return CUDA_SUCCESS;
}

// Sizes and places of what is passed by structure, in the order that test_prototypes.py has them.
const size_t* fake_layouts() {
  static const size_t found[] = {
      sizeof(CUlaunchConfig), offsetof(CUlaunchConfig, gridDimX), offsetof(CUlaunchConfig, blockDimX),
      offsetof(CUlaunchConfig, sharedMemBytes), offsetof(CUlaunchConfig, hStream), offsetof(CUlaunchConfig, attrs),
      offsetof(CUlaunchConfig, numAttrs), sizeof(CUlaunchAttribute), offsetof(CUlaunchAttribute, id),
      offsetof(CUlaunchAttribute, value), sizeof(CUtensorMap), alignof(CUtensorMap),
      size_t(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION), size_t(CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
      size_t(CU_TENSOR_MAP_DATA_TYPE_UINT8), size_t(CU_TENSOR_MAP_DATA_TYPE_UINT16),
      size_t(CU_TENSOR_MAP_DATA_TYPE_UINT32), size_t(CU_TENSOR_MAP_DATA_TYPE_INT32),
      size_t(CU_TENSOR_MAP_DATA_TYPE_UINT64), size_t(CU_TENSOR_MAP_DATA_TYPE_INT64),
      size_t(CU_TENSOR_MAP_DATA_TYPE_FLOAT16), size_t(CU_TENSOR_MAP_DATA_TYPE_FLOAT32),
      size_t(CU_TENSOR_MAP_DATA_TYPE_FLOAT64), size_t(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16),
      size_t(CU_TENSOR_MAP_SWIZZLE_NONE), size_t(CU_TENSOR_MAP_SWIZZLE_32B), size_t(CU_TENSOR_MAP_SWIZZLE_64B),
      size_t(CU_TENSOR_MAP_SWIZZLE_128B)};
  return found;
}
}
