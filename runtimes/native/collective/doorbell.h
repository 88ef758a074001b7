// How a rank that sleeps is told of bytes in memory. Lies in shared memory, zeroed; one for each rank.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace lowerkit::collective {

struct alignas(64) Doorbell {
  std::atomic<uint32_t> rings{0};
  std::atomic<uint32_t> sleepers{0};

  // Dekker: the ringer counts, then looks for sleepers; the sleeper announces itself, then compares the count.
  void ring() {
    rings.fetch_add(1);
    if (sleepers.load())
      syscall(SYS_futex, reinterpret_cast<uint32_t *>(&rings), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  uint32_t heard() const { return rings.load(); }
  // Returns when it rang since `heard`, after `nanoseconds`, or for no reason.
  void sleep(uint32_t heard, int64_t nanoseconds) {
    timespec limit{time_t(nanoseconds / 1000000000), long(nanoseconds % 1000000000)};
    sleepers.fetch_add(1);
    syscall(SYS_futex, reinterpret_cast<uint32_t *>(&rings), FUTEX_WAIT, heard, &limit, nullptr, 0);
    sleepers.fetch_sub(1);
  }
};

}  // namespace lowerkit::collective
