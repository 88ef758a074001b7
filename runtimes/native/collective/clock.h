// Deadlines on the monotonic clock, in nanoseconds.
#pragma once

#include <time.h>

#include <cstdint>

namespace lowerkit::collective {

inline int64_t monotonic_nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

inline int64_t wall_nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

constexpr int64_t kLongWait = 1000000000;

struct Deadline {
  int64_t at;
  int64_t timeout;  // what was asked for, for messages
  int64_t started;

  static Deadline in(int64_t nanoseconds) { return in(nanoseconds, monotonic_nanoseconds()); }
  static Deadline in(int64_t nanoseconds, int64_t now) {
    return {nanoseconds > INT64_MAX - now ? INT64_MAX : now + nanoseconds, nanoseconds, now};
  }
  // How long a rank waits before it tells the others that it does.
  int64_t until_told() const { return timeout / 4 < kLongWait ? timeout / 4 : kLongWait; }
  bool passed(int64_t now) const { return now >= at; }
};

}  // namespace lowerkit::collective
