// What a simulated message occupies on its way: each way from one rank to another takes one message after the other.
//
// All groups of a simulation share the ways, as all connections between two hosts share their cable.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace lowerkit::collective {

class Wires {
 public:
  // Bytes a second of each way; 0: as many as there are at once.
  explicit Wires(double bandwidth) : bandwidth_(bandwidth) {}

  // A message that is sent at `now` and waits for those before it; returns when its last byte has left.
  int64_t transmit(int source, int destination, uint64_t bytes, int64_t now) {
    if (bandwidth_ <= 0) return now;
    const double taken = std::ceil(double(bytes) * 1e9 / bandwidth_);
    std::lock_guard<std::mutex> held(mutex_);
    int64_t &free_at = free_at_[{source, destination}];
    const int64_t begin = std::max(free_at, now);
    free_at = taken < double(INT64_MAX - begin) ? begin + int64_t(taken) : INT64_MAX;
    return free_at;
  }

 private:
  const double bandwidth_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, int64_t> free_at_;
};

}  // namespace lowerkit::collective
