#include "support_routines.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>

namespace lowerkit {
namespace {

template <typename To, typename From>
To bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

// Half and bfloat16 travel in the low 16 bits of a vector register (x86-64 psABI), where a float of these bits lies too.
float low_half(uint16_t value) { return bits<float>(static_cast<uint32_t>(value)); }
uint16_t low_half(float value) { return static_cast<uint16_t>(bits<uint32_t>(value)); }

// Rounds the magnitude `value` (an integer of `drop` more bits than wanted) to nearest, ties to even.
uint64_t round_shift(uint64_t value, int drop) {
  const uint64_t kept = value >> drop, rest = value & ((uint64_t{1} << drop) - 1), half = uint64_t{1} << (drop - 1);
  return kept + ((rest > half || (rest == half && (kept & 1))) ? 1 : 0);
}

// Rounds a double once to a 16-bit format with `exponent_bits` and 15 - exponent_bits mantissa bits.
template <int exponent_bits>
uint16_t round_to_16(double number) {
  constexpr int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  constexpr uint64_t infinity = ((uint64_t{1} << exponent_bits) - 1) << mantissa_bits;
  const uint64_t raw = bits<uint64_t>(number);
  const uint16_t sign = static_cast<uint16_t>(raw >> 48 & 0x8000);
  const int exponent = static_cast<int>(raw >> 52 & 0x7ff);
  const uint64_t mantissa = raw & ((uint64_t{1} << 52) - 1);
  if (exponent == 0x7ff)  // a NaN keeps its leading payload bits and becomes quiet
    return sign | static_cast<uint16_t>(infinity | (mantissa ? (uint64_t{1} << (mantissa_bits - 1)) | mantissa >> (52 - mantissa_bits) : 0));
  const int target = exponent - 1023 + bias;
  if (target >= (1 << exponent_bits) - 1) return sign | static_cast<uint16_t>(infinity);
  if (exponent == 0) return sign;  // a subnormal double lies far below both formats
  // The carry of the rounding runs into the exponent by itself, up to infinity.
  if (target > 0)
    return sign | static_cast<uint16_t>((static_cast<uint64_t>(target) << mantissa_bits) + round_shift(mantissa, 52 - mantissa_bits));
  const int drop = 52 - mantissa_bits + 1 - target;
  if (drop > 60) return sign;
  return sign | static_cast<uint16_t>(round_shift(mantissa | uint64_t{1} << 52, drop));
}

double half_to_double(uint16_t value) {
  const int exponent = value >> 10 & 31, mantissa = value & 0x3ff;
  const double sign = value & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31)
    return bits<double>(uint64_t(value & 0x8000) << 48 | uint64_t{0x7ff} << 52 | uint64_t(mantissa) << 42 |
                        (mantissa ? uint64_t{1} << 51 : 0));
  return sign * (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
}

float truncate_float_to_half(float x) { return low_half(round_to_16<5>(x)); }
float truncate_double_to_half(double x) { return low_half(round_to_16<5>(x)); }
float truncate_float_to_bfloat(float x) { return low_half(round_to_16<8>(x)); }
float truncate_double_to_bfloat(double x) { return low_half(round_to_16<8>(x)); }
float extend_half_to_float(float x) { return static_cast<float>(half_to_double(low_half(x))); }
double extend_half_to_double(float x) { return half_to_double(low_half(x)); }

template <typename Function>
void *address(Function *function) {
  return reinterpret_cast<void *>(function);
}

#define UNARY(name)                                                  \
  {#name, address(static_cast<double (*)(double)>(::name))}, {       \
    #name "f", address(static_cast<float (*)(float)>(::name##f))     \
  }
#define BINARY(name)                                                           \
  {#name, address(static_cast<double (*)(double, double)>(::name))}, {         \
    #name "f", address(static_cast<float (*)(float, float)>(::name##f))        \
  }

const std::map<std::string, void *> &routines() {
  static const std::map<std::string, void *> table = {
      UNARY(acos), UNARY(acosh), UNARY(asin), UNARY(asinh), UNARY(atan), UNARY(atanh), UNARY(cbrt), UNARY(ceil),
      UNARY(cos), UNARY(cosh), UNARY(erf), UNARY(erfc), UNARY(exp), UNARY(exp2), UNARY(expm1), UNARY(fabs),
      UNARY(floor), UNARY(lgamma), UNARY(log), UNARY(log10), UNARY(log1p), UNARY(log2), UNARY(nearbyint), UNARY(rint),
      UNARY(round), UNARY(sin), UNARY(sinh), UNARY(sqrt), UNARY(tan), UNARY(tanh), UNARY(tgamma), UNARY(trunc),
      UNARY(roundeven), UNARY(exp10),
      BINARY(atan2), BINARY(copysign), BINARY(fmax), BINARY(fmin), BINARY(fmod), BINARY(hypot), BINARY(pow),
      BINARY(remainder), BINARY(nextafter),
      {"fma", address(static_cast<double (*)(double, double, double)>(::fma))},
      {"fmaf", address(static_cast<float (*)(float, float, float)>(::fmaf))},
      {"ldexp", address(static_cast<double (*)(double, int)>(::ldexp))},
      {"ldexpf", address(static_cast<float (*)(float, int)>(::ldexpf))},
      // LLVM makes one call of a sine and a cosine of the same value.
      {"sincos", address(static_cast<void (*)(double, double *, double *)>(::sincos))},
      {"sincosf", address(static_cast<void (*)(float, float *, float *)>(::sincosf))},
      {"memcpy", address(static_cast<void *(*)(void *, const void *, size_t)>(::memcpy))},
      {"memmove", address(static_cast<void *(*)(void *, const void *, size_t)>(::memmove))},
      {"memset", address(static_cast<void *(*)(void *, int, size_t)>(::memset))},
      {"__truncsfhf2", address(truncate_float_to_half)},
      {"__truncdfhf2", address(truncate_double_to_half)},
      {"__truncsfbf2", address(truncate_float_to_bfloat)},
      {"__truncdfbf2", address(truncate_double_to_bfloat)},
      {"__extendhfsf2", address(extend_half_to_float)},
      {"__extendhfdf2", address(extend_half_to_double)},
  };
  return table;
}

#undef UNARY
#undef BINARY

}  // namespace

void *support_routine(const std::string &name) {
  const auto entry = routines().find(name);
  return entry == routines().end() ? nullptr : entry->second;
}

std::vector<std::string> support_routine_names() {
  std::vector<std::string> names;
  for (const auto &entry : routines()) names.push_back(entry.first);
  return names;
}

}  // namespace lowerkit
