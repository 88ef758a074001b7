#include "reduce.h"

#include <cstring>
#include <type_traits>

#include "dtypes.h"

// The loops are compiled for three levels and chosen once; a sanitizer build or another architecture has one.
#if defined(__x86_64__) && !defined(LOWERKIT_ONE_LEVEL)
#define LOWERKIT_LEVELS 1
#else
#define LOWERKIT_LEVELS 0
#endif

namespace lowerkit::collective {
namespace baseline {
#include "reduce_kernels.inc"
}  // namespace baseline

#if LOWERKIT_LEVELS
#pragma GCC push_options
#pragma GCC target("avx2,f16c,fma")
namespace avx2 {
#include "reduce_kernels.inc"
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,f16c,fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
namespace avx512 {
#include "reduce_kernels.inc"
}  // namespace avx512
#pragma GCC pop_options
#endif

namespace {

using Reduce = void (*)(void *, const void *const *, const double *, int, int64_t, int, int);

Reduce choose() {
#if LOWERKIT_LEVELS
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return avx512::reduce;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return avx2::reduce;
#endif
  return baseline::reduce;
}

const Reduce chosen = choose();

// bool: 0 and 1 as bytes, so that or is max and and is min.
int of_booleans(int reduction) {
  switch (reduction) {
    case LK_SUM:
    case LK_MAX:
    case LK_BOR:
      return LK_BOR;
    case LK_PRODUCT:
    case LK_MIN:
    case LK_BAND:
      return LK_BAND;
    default:
      return LK_BXOR;
  }
}

}  // namespace

void reduce(void *target, const void *const *sources, const double *factors, int source_count, int64_t count, int dtype,
            int reduction) {
  if (source_count == 1 && !factors) {
    if (count && target != sources[0]) std::memmove(target, sources[0], size_t(count * kDtypeBytes[dtype]));
    return;
  }
  if (dtype == LK_BOOL) return chosen(target, sources, nullptr, source_count, count, LK_U8, of_booleans(reduction));
  chosen(target, sources, factors, source_count, count, dtype, reduction);
}

void scale(void *data, double factor, int64_t count, int dtype) {
  const void *source = data;
  reduce(data, &source, &factor, 1, count, dtype, LK_SUM);
}

// The divisor may be more than the type holds.
template <class T>
static void divide_integers(void *data, int64_t divisor, int64_t count) {
  using Wide = std::conditional_t<std::is_signed<T>::value, int64_t, uint64_t>;
  auto *values = static_cast<T *>(data);
  for (int64_t i = 0; i < count; ++i) values[i] = T(Wide(values[i]) / Wide(divisor));
}

void divide(void *data, int64_t divisor, int64_t count, int dtype) {
  using namespace baseline;
  switch (dtype) {
    case LK_F32:
      return divide_all<Plain<float>>(data, float(divisor), count);
    case LK_F64:
      return divide_all<Plain<double>>(data, double(divisor), count);
    case LK_F16:
      return divide_all<Half>(data, float(divisor), count);
    case LK_BF16:
      return divide_all<Brain>(data, float(divisor), count);
    case LK_I8:
      return divide_integers<int8_t>(data, divisor, count);
    case LK_I16:
      return divide_integers<int16_t>(data, divisor, count);
    case LK_I32:
      return divide_integers<int32_t>(data, divisor, count);
    case LK_I64:
      return divide_integers<int64_t>(data, divisor, count);
    case LK_U8:
      return divide_integers<uint8_t>(data, divisor, count);
    case LK_U16:
      return divide_integers<uint16_t>(data, divisor, count);
    case LK_U32:
      return divide_integers<uint32_t>(data, divisor, count);
    case LK_U64:
      return divide_integers<uint64_t>(data, divisor, count);
    default:
      return;
  }
}

}  // namespace lowerkit::collective
