// Copies between a caller's buffers and shared memory.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lowerkit::collective {

// Stores past the caches: for outputs that would not be found there again. 16-byte stores are part of every x86-64.
inline void copy_streaming(void *target, const void *source, int64_t bytes) {
#if defined(__x86_64__)
  auto *out = static_cast<uint8_t *>(target);
  auto *in = static_cast<const uint8_t *>(source);
  int64_t head = int64_t(-reinterpret_cast<uintptr_t>(out) & 63);
  if (head > bytes) head = bytes;
  std::memcpy(out, in, size_t(head));
  out += head;
  in += head;
  bytes -= head;
  for (; bytes >= 64; bytes -= 64, out += 64, in += 64) {
    __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i *>(in));
    __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i *>(in + 16));
    __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i *>(in + 32));
    __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i *>(in + 48));
    _mm_stream_si128(reinterpret_cast<__m128i *>(out), a);
    _mm_stream_si128(reinterpret_cast<__m128i *>(out + 16), b);
    _mm_stream_si128(reinterpret_cast<__m128i *>(out + 32), c);
    _mm_stream_si128(reinterpret_cast<__m128i *>(out + 48), d);
  }
  _mm_sfence();
  std::memcpy(out, in, size_t(bytes));
#else
  std::memcpy(target, source, size_t(bytes));
#endif
}

inline void copy(void *target, const void *source, int64_t bytes, bool streaming) {
  if (bytes <= 0) return;
  if (streaming)
    copy_streaming(target, source, bytes);
  else
    std::memcpy(target, source, size_t(bytes));
}

}  // namespace lowerkit::collective
