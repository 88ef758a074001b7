// Slow reductions, an element at a time.
#include "reduce.h"

#include <cstring>
#include <type_traits>

#include "dtypes.h"

namespace lowerkit::collective {
namespace {

struct Brain {  // bf16
  uint16_t bits;
  operator float() const {
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  Brain() = default;
  Brain(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, 4);
    bits = value != value ? 0x7fc0 : uint16_t((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  }
};

template <class Type>
struct Sum {
  using type = Type;
};
template <>
struct Sum<_Float16> {
  using type = float;
};
template <>
struct Sum<Brain> {
  using type = float;
};

template <class Wide>
Wide combine(Wide a, Wide b, int reduction) {
  switch (reduction) {
    case LK_PRODUCT:
      return Wide(a * b);
    case LK_MIN:
      return b < a ? b : a;
    case LK_MAX:
      return a < b ? b : a;
  }
  if constexpr (std::is_integral_v<Wide>) {
    if (reduction == LK_BAND) return Wide(a & b);
    if (reduction == LK_BOR) return Wide(a | b);
    if (reduction == LK_BXOR) return Wide(a ^ b);
    return Wide(std::make_unsigned_t<Wide>(a) + std::make_unsigned_t<Wide>(b));
  } else {
    return a + b;
  }
}

template <class Type>
void reduce_all(void *target, const void *const *sources, const double *factors, int source_count, int64_t count,
                int reduction) {
  using Wide = typename Sum<Type>::type;
  for (int64_t i = 0; i < count; ++i) {
    Wide sum{};
    for (int s = 0; s < source_count; ++s) {
      Wide value = Wide(static_cast<const Type *>(sources[s])[i]);
      if (factors) value = Wide(value * Wide(factors[s]));
      sum = s ? combine(sum, value, reduction) : value;
    }
    static_cast<Type *>(target)[i] = Type(sum);
  }
}

template <class Type>
void divide_all(void *data, int64_t divisor, int64_t count) {
  using Wide = typename Sum<Type>::type;
  for (int64_t i = 0; i < count; ++i) {
    Type &value = static_cast<Type *>(data)[i];
    value = Type(Wide(value) / Wide(divisor));
  }
}

template <class Function>
void with_type(int dtype, Function function) {
  switch (dtype) {
    case LK_F32:
      return function(float{});
    case LK_F64:
      return function(double{});
    case LK_F16:
      return function(_Float16{});
    case LK_BF16:
      return function(Brain{});
    case LK_I8:
      return function(int8_t{});
    case LK_I16:
      return function(int16_t{});
    case LK_I32:
      return function(int32_t{});
    case LK_I64:
      return function(int64_t{});
    case LK_U8:
      return function(uint8_t{});
    case LK_U16:
      return function(uint16_t{});
    case LK_U32:
      return function(uint32_t{});
    case LK_U64:
      return function(uint64_t{});
  }
}

}  // namespace

void reduce(void *target, const void *const *sources, const double *factors, int source_count, int64_t count, int dtype,
            int reduction) {
  if (source_count == 1 && !factors) {
    if (count) std::memmove(target, sources[0], size_t(count * kDtypeBytes[dtype]));
    return;
  }
  if (dtype == LK_BOOL) {
    bool either = reduction == LK_SUM || reduction == LK_MAX || reduction == LK_BOR;
    reduction = either ? LK_BOR : reduction == LK_BXOR ? LK_BXOR : LK_BAND;
    dtype = LK_U8;
  }
  with_type(dtype,
            [&](auto type) { reduce_all<decltype(type)>(target, sources, factors, source_count, count, reduction); });
}

void divide(void *data, int64_t divisor, int64_t count, int dtype) {
  with_type(dtype, [&](auto type) { divide_all<decltype(type)>(data, divisor, count); });
}

}  // namespace lowerkit::collective
