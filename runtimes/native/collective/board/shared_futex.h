// Futexes on words that several processes map, with a timeout.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace lowerkit::collective {

// The half of a 64-bit counter that changes with every step: x86 and all other machines we serve are little-endian.
inline uint32_t *low_word(std::atomic<uint64_t> &counter) { return reinterpret_cast<uint32_t *>(&counter); }

// Returns at once where the counter's low half is not that of `expected`; may also return for no reason.
inline void sleep_while(std::atomic<uint64_t> &counter, uint64_t expected, int64_t nanoseconds) {
  timespec timeout{nanoseconds / 1000000000, nanoseconds % 1000000000};
  syscall(SYS_futex, low_word(counter), FUTEX_WAIT, uint32_t(expected), &timeout, nullptr, 0);
}

inline void wake_all(std::atomic<uint64_t> &counter) {
  syscall(SYS_futex, low_word(counter), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace lowerkit::collective
