#include "cpu_features.h"

#include <algorithm>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lowerkit {

#if defined(__x86_64__)

namespace {

enum Register { EAX, EBX, ECX, EDX };

// Bits of XCR0: which registers the OS saves at a context switch.
enum State : uint64_t { kNone = 0, kAvx = 0x6, kAvx512 = 0xe6, kAmx = 0x60000 };

struct Feature {
  const char *name;
  uint32_t leaf;
  uint32_t subleaf;
  Register reg;
  int bit;
  State state;
};

// Intel SDM volume 2A, CPUID.
constexpr Feature kFeatures[] = {
    {"sse3", 1, 0, ECX, 0, kNone},
    {"pclmul", 1, 0, ECX, 1, kNone},
    {"ssse3", 1, 0, ECX, 9, kNone},
    {"fma", 1, 0, ECX, 12, kAvx},
    {"cx16", 1, 0, ECX, 13, kNone},
    {"sse4.1", 1, 0, ECX, 19, kNone},
    {"sse4.2", 1, 0, ECX, 20, kNone},
    {"movbe", 1, 0, ECX, 22, kNone},
    {"popcnt", 1, 0, ECX, 23, kNone},
    {"aes", 1, 0, ECX, 25, kNone},
    {"xsave", 1, 0, ECX, 26, kNone},
    {"avx", 1, 0, ECX, 28, kAvx},
    {"f16c", 1, 0, ECX, 29, kAvx},
    {"rdrnd", 1, 0, ECX, 30, kNone},
    {"cx8", 1, 0, EDX, 8, kNone},
    {"cmov", 1, 0, EDX, 15, kNone},
    {"mmx", 1, 0, EDX, 23, kNone},
    {"fxsr", 1, 0, EDX, 24, kNone},
    {"sse", 1, 0, EDX, 25, kNone},
    {"sse2", 1, 0, EDX, 26, kNone},
    {"fsgsbase", 7, 0, EBX, 0, kNone},
    {"bmi", 7, 0, EBX, 3, kNone},
    {"avx2", 7, 0, EBX, 5, kAvx},
    {"bmi2", 7, 0, EBX, 8, kNone},
    {"avx512f", 7, 0, EBX, 16, kAvx512},
    {"avx512dq", 7, 0, EBX, 17, kAvx512},
    {"rdseed", 7, 0, EBX, 18, kNone},
    {"adx", 7, 0, EBX, 19, kNone},
    {"avx512ifma", 7, 0, EBX, 21, kAvx512},
    {"clflushopt", 7, 0, EBX, 23, kNone},
    {"clwb", 7, 0, EBX, 24, kNone},
    {"avx512cd", 7, 0, EBX, 28, kAvx512},
    {"sha", 7, 0, EBX, 29, kNone},
    {"avx512bw", 7, 0, EBX, 30, kAvx512},
    {"avx512vl", 7, 0, EBX, 31, kAvx512},
    {"avx512vbmi", 7, 0, ECX, 1, kAvx512},
    {"avx512vbmi2", 7, 0, ECX, 6, kAvx512},
    {"gfni", 7, 0, ECX, 8, kNone},
    {"vaes", 7, 0, ECX, 9, kAvx},
    {"vpclmulqdq", 7, 0, ECX, 10, kAvx},
    {"avx512vnni", 7, 0, ECX, 11, kAvx512},
    {"avx512bitalg", 7, 0, ECX, 12, kAvx512},
    {"avx512vpopcntdq", 7, 0, ECX, 14, kAvx512},
    {"rdpid", 7, 0, ECX, 22, kNone},
    {"cldemote", 7, 0, ECX, 25, kNone},
    {"movdiri", 7, 0, ECX, 27, kNone},
    {"movdir64b", 7, 0, ECX, 28, kNone},
    {"amx-bf16", 7, 0, EDX, 22, kAmx},
    {"avx512fp16", 7, 0, EDX, 23, kAvx512},
    {"amx-tile", 7, 0, EDX, 24, kAmx},
    {"amx-int8", 7, 0, EDX, 25, kAmx},
    {"avxvnni", 7, 1, EAX, 4, kAvx},
    {"avx512bf16", 7, 1, EAX, 5, kAvx512},
    {"amx-fp16", 7, 1, EAX, 21, kAmx},
    {"avxifma", 7, 1, EAX, 23, kAvx},
    {"avxvnniint8", 7, 1, EDX, 4, kAvx},
    {"avxneconvert", 7, 1, EDX, 5, kAvx},
    {"avxvnniint16", 7, 1, EDX, 10, kAvx},
    {"xsaveopt", 0xd, 1, EAX, 0, kNone},
    {"xsavec", 0xd, 1, EAX, 1, kNone},
    {"xsaves", 0xd, 1, EAX, 3, kNone},
    {"sahf", 0x80000001, 0, ECX, 0, kNone},
    {"lzcnt", 0x80000001, 0, ECX, 5, kNone},
    {"prfchw", 0x80000001, 0, ECX, 8, kNone},
    {"64bit", 0x80000001, 0, EDX, 29, kNone},
};

uint64_t saved_states() {
  unsigned registers[4] = {};
  if (!__get_cpuid(1, &registers[EAX], &registers[EBX], &registers[ECX], &registers[EDX])) return 0;
  if (!(registers[ECX] >> 27 & 1)) return 0;  // OSXSAVE
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

}  // namespace

std::vector<std::string> cpu_features() {
  const uint64_t states = saved_states();
  std::vector<std::string> names;
  for (const Feature &feature : kFeatures) {
    unsigned registers[4] = {};
    if (!__get_cpuid_count(feature.leaf, feature.subleaf, &registers[EAX], &registers[EBX], &registers[ECX],
                           &registers[EDX]))
      continue;
    if ((registers[feature.reg] >> feature.bit & 1) && (states & feature.state) == feature.state)
      names.emplace_back(feature.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> known_cpu_features() {
  std::vector<std::string> names;
  for (const Feature &feature : kFeatures) names.emplace_back(feature.name);
  std::sort(names.begin(), names.end());
  return names;
}

bool request_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#else

std::vector<std::string> cpu_features() { return {}; }
std::vector<std::string> known_cpu_features() { return {}; }
bool request_amx() { return false; }

#endif

}  // namespace lowerkit
