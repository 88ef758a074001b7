#include "checksum.h"

#include <algorithm>
#include <array>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lowerkit {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320;
constexpr size_t kChunk = size_t{4} << 20;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ kPolynomial : value >> 1;
    table[i] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

uint32_t update_bytewise(uint32_t state, const uint8_t *data, size_t size) {
  for (size_t i = 0; i < size; ++i) state = kTable[(state ^ data[i]) & 0xff] ^ state >> 8;
  return state;
}

#if defined(__x86_64__)

#define CLMUL_TARGET __attribute__((target("sse4.1,pclmul")))

CLMUL_TARGET inline __m128i load(const uint8_t *data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i *>(data));
}

// Moves `accumulator` forward by the distance that `constants` stand for and adds `next`.
CLMUL_TARGET inline __m128i fold(__m128i accumulator, __m128i constants, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(accumulator, constants, 0x00);
  const __m128i high = _mm_clmulepi64_si128(accumulator, constants, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// `size` is a multiple of 16 and at least 64. The constants are x^n mod P (bit-reflected) from table 1 of the paper.
CLMUL_TARGET uint32_t update_clmul(uint32_t state, const uint8_t *data, size_t size) {
  const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
  const __m128i by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
  const __m128i by_64 = _mm_set_epi64x(0, 0x0163cd6124);
  const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
  const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);

  __m128i a = _mm_xor_si128(load(data), _mm_cvtsi32_si128(static_cast<int>(state)));
  __m128i b = load(data + 16), c = load(data + 32), d = load(data + 48);
  for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
    a = fold(a, by_512, load(data));
    b = fold(b, by_512, load(data + 16));
    c = fold(c, by_512, load(data + 32));
    d = fold(d, by_512, load(data + 48));
  }
  a = fold(fold(fold(a, by_128, b), by_128, c), by_128, d);
  for (; size >= 16; data += 16, size -= 16) a = fold(a, by_128, load(data));

  a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_128, 0x10));  // 128 -> 96 bits
  a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low_words), by_64, 0x00));  // -> 64
  __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(a, low_words), barrett, 0x10);
  quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_words), barrett, 0x00);
  return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(a, quotient), 1));
}

bool has_clmul() { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }

#else

uint32_t update_clmul(uint32_t state, const uint8_t *data, size_t size) { return update_bytewise(state, data, size); }
bool has_clmul() { return false; }

#endif

uint32_t chunk_crc(const uint8_t *data, size_t size) {
  uint32_t state = ~uint32_t{0};
  const size_t folded = size >= 64 && has_clmul() ? size & ~size_t{15} : 0;
  if (folded) state = update_clmul(state, data, folded);
  return ~update_bytewise(state, data + folded, size - folded);
}

// a * b mod P, bit-reflected: x^0 is the highest bit.
uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b & 1 ? b >> 1 ^ kPolynomial : b >> 1;
  }
  return product;
}

// x^(8 * bytes) mod P by repeated squaring.
uint32_t power_of_x(size_t bytes) {
  uint32_t result = uint32_t{1} << 31, square = uint32_t{1} << 23;  // x^0, x^8
  for (; bytes; bytes >>= 1) {
    if (bytes & 1) result = multiply(result, square);
    square = multiply(square, square);
  }
  return result;
}

struct Work {
  const uint8_t *data;
  size_t size;
  std::vector<uint32_t> chunks;
};

void run_chunks(void *context, int64_t begin, int64_t end, int) {
  Work &work = *static_cast<Work *>(context);
  for (int64_t i = begin; i < end; ++i) {
    const size_t from = static_cast<size_t>(i) * kChunk;
    work.chunks[static_cast<size_t>(i)] = chunk_crc(work.data + from, std::min(kChunk, work.size - from));
  }
}

}  // namespace

uint32_t crc32(const uint8_t *data, size_t size, ThreadPool &pool) {
  if (size == 0) return 0;
  Work work{data, size, std::vector<uint32_t>((size + kChunk - 1) / kChunk)};
  {
    ThreadPool::Lease lease(pool);
    lease.run(static_cast<int64_t>(work.chunks.size()), run_chunks, &work);
  }
  const uint32_t full_chunk = power_of_x(kChunk);
  uint32_t result = work.chunks[0];
  for (size_t i = 1; i < work.chunks.size(); ++i) {
    const bool last = i + 1 == work.chunks.size();
    result = multiply(last ? power_of_x(size - i * kChunk) : full_chunk, result) ^ work.chunks[i];
  }
  return result;
}

}  // namespace lowerkit
