// How a thread that waits learns that its caller wants it back: a signal came, say, whose handler raised.
#pragma once

#include <atomic>
#include <cstdint>

#include "lowerkit_collective.h"

namespace lowerkit::collective {

// How often who sleeps looks.
constexpr int64_t kInterruptionInterval = 20000000;

inline std::atomic<lk_interruption> interruption_hook{nullptr};

// Asked by threads that wait, with no lock held: the hook may run whatever its caller likes.
inline bool interrupted() {
  const lk_interruption hook = interruption_hook.load(std::memory_order_relaxed);
  return hook && hook() != 0;
}

}  // namespace lowerkit::collective
