// A libcuda that keeps what it is asked in a log, and memory of the host in place of a card's.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <string>

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
}  // namespace

extern "C" {
const char* fake_calls() { return calls.c_str(); }
void fake_reset() {
  calls.clear();
  capability_major = 9, capability_minor = 0, cards = 1, cubin_result = ptx_result = launch_result = 0;
  driver_version = 12080, capture_result = instantiate_result = 0;
}
void fake_driver(int version) { driver_version = version; }
void fake_captures(int capture, int instantiate) { capture_result = capture, instantiate_result = instantiate; }
void fake_capability(int major, int minor) { capability_major = major, capability_minor = minor; }
void fake_cards(int count) { cards = count; }
void fake_results(int cubin, int ptx, int launch) { cubin_result = cubin, ptx_result = ptx, launch_result = launch; }
int fake_live() { return int(memory.size()); }

int cuInit(unsigned) { note("init"); return cards < 0 ? 100 : 0; }
int cuDeviceGetCount(int* count) { *count = cards; return 0; }
int cuDeviceGet(int* device, int number) { *device = number; return 0; }
int cuDeviceGetName(char* name, int size, int) { strncpy(name, "Fake 9000", size_t(size)); return 0; }
int cuDeviceGetAttribute(int* value, int which, int) {
  *value = which == 75 ? capability_major : which == 76 ? capability_minor : -1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) { *context = reinterpret_cast<void*>(0xC0); note("retain"); return 0; }
int cuDevicePrimaryCtxRelease_v2(int) { note("release"); return 0; }
int cuCtxSetCurrent(void*) { note("current"); return 0; }
int cuMemAlloc_v2(uint64_t* address, size_t size) {
  if (size > room) return 2;
  void* data = std::aligned_alloc(256, (size + 255) / 256 * 256);
  *address = reinterpret_cast<uint64_t>(data);
  memory[*address] = size;
  note("alloc " + std::to_string(size));
  return 0;
}
int cuMemFree_v2(uint64_t address) {
  if (!memory.erase(address)) return 1;
  std::free(reinterpret_cast<void*>(address));
  note("free");
  return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t size, void*) {
  if (!inside(to)) return 1;
  memcpy(reinterpret_cast<void*>(to), from, size);
  note("in " + std::to_string(size));
  return 0;
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t size, void*) {
  if (!inside(from)) return 1;
  memcpy(to, reinterpret_cast<void*>(from), size);
  note("out " + std::to_string(size));
  return 0;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void*) {
  if (!inside(from) || !inside(to)) return 1;
  memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size);
  note("across " + std::to_string(size));
  return 0;
}
int cuStreamCreate(void** stream, unsigned flags) {
  *stream = reinterpret_cast<void*>(next_handle++);
  note("stream " + std::to_string(flags));
  return 0;
}
int cuStreamSynchronize(void*) { note("synchronize"); return 0; }
int cuStreamDestroy_v2(void*) { note("stream gone"); return 0; }
int cuStreamWaitEvent(void*, void* event, unsigned) {
  note("wait " + std::to_string(reinterpret_cast<uint64_t>(event)));
  return 0;
}
int cuEventCreate(void** event, unsigned) { *event = reinterpret_cast<void*>(uint64_t(7)); return 0; }
int cuEventRecord(void* event, void*) {
  note("record " + std::to_string(reinterpret_cast<uint64_t>(event)));
  return 0;
}
int cuEventSynchronize(void*) { note("until event"); return 0; }
int cuEventElapsedTime(float* milliseconds, void*, void*) { *milliseconds = 2.5f; return 0; }
int cuEventDestroy_v2(void*) { note("event gone"); return 0; }
int cuDriverGetVersion(int* version) { *version = driver_version; return 0; }
int cuStreamBeginCapture_v2(void*, int mode) { note("begin " + std::to_string(mode)); return 0; }
int cuStreamEndCapture(void*, void** graph) { *graph = reinterpret_cast<void*>(0x61); note("end"); return capture_result; }
int cuGraphInstantiateWithFlags(void** executable, void* graph, uint64_t flags) {
  note("instantiate " + std::to_string(reinterpret_cast<uint64_t>(graph)) + " " + std::to_string(flags));
  *executable = reinterpret_cast<void*>(0x62);
  return instantiate_result;
}
int cuGraphLaunch(void* executable, void*) {
  note("graph " + std::to_string(reinterpret_cast<uint64_t>(executable)));
  return launch_result;
}
int cuGraphExecDestroy(void* executable) {
  note("executable gone " + std::to_string(reinterpret_cast<uint64_t>(executable)));
  return 0;
}
int cuGraphDestroy(void* graph) {
  note("graph gone " + std::to_string(reinterpret_cast<uint64_t>(graph)));
  return 0;
}
int cuModuleLoadData(void** module, const void* image) {
  note("cubin " + std::string(static_cast<const char*>(image)));
  *module = reinterpret_cast<void*>(next_handle++);
  return cubin_result;
}
int cuModuleLoadDataEx(void** module, const void* image, unsigned count, const int* options, void** values) {
  note("ptx " + std::string(static_cast<const char*>(image)).substr(0, 12));
  for (unsigned i = 0; i < count; ++i)
    if (options[i] == 5 && ptx_result) strcpy(static_cast<char*>(values[i]), "ptxas: line 3: no such instruction");
  *module = reinterpret_cast<void*>(next_handle++);
  return ptx_result;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  if (!strcmp(name, "missing")) return 500;
  *function = reinterpret_cast<void*>(next_handle++);
  note("function " + std::string(name));
  return 0;
}
int cuModuleUnload(void*) { note("unload"); return 0; }
int cuLaunchKernel(void*, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void*, void** arguments, void** extra) {
  std::string text = "launch";
  for (unsigned each : {gx, gy, gz, bx, by, bz, shared}) text += " " + std::to_string(each);
  if (extra) text += " extra";
  text += ":";
  // The launches of the tests pass an address, a negative number and a small one.
  for (int i = 0; i < 3; ++i) {
    int64_t value = *static_cast<int64_t*>(arguments[i]);
    text += memory.count(uint64_t(value)) ? " buffer" : " " + std::to_string(value);
  }
  note(text);
  return launch_result;
}
int cuGetErrorName(int number, const char** name) {
  *name = number == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : number == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" :
          number == 901 ? "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" : "CUDA_ERROR_OTHER";
  return 0;
}
int cuGetErrorString(int number, const char** text) {
  *text = number == 2 ? "out of memory" : number == 700 ? "an illegal memory access was encountered" : nullptr;
  return 0;
}
}
