// The futex system call: sleep while a 32-bit word holds a value, wake those who do.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace lowerkit {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

// Returns at once where the word is not `expected`; may also return for no reason: callers loop.
inline void futex_wait(std::atomic<uint32_t> &word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t> &word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// The same on a word of 64 bits: the kernel compares its low half.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && std::atomic<uint64_t>::is_always_lock_free);

inline void futex_wait(std::atomic<uint64_t> &word, uint64_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAIT_PRIVATE, static_cast<uint32_t>(expected), nullptr,
          nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint64_t> &word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace lowerkit
