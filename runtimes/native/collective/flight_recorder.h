// The last operations of a group, for the time after a failure.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "operation.h"
#include "simulation/simulated_ranks.h"

namespace lowerkit::collective {

class FlightRecorder {
 public:
  static constexpr uint64_t kRecords = 1024;

  // Of a rank of a simulation: moments are those of its clock.
  explicit FlightRecorder(const SimulatedRanks *ranks = nullptr) : ranks_(ranks) {}

  // The clock of operations and their deadlines.
  int64_t now() const { return ranks_ ? ranks_->now() : monotonic_nanoseconds(); }
  // Returns the record's number, for the execution to keep.
  uint64_t start(const Execution &execution, int64_t tag);
  void finish(const Execution &execution, lk_status status);
  // Oldest first; at most `capacity`, the newest.
  int64_t read(lk_record *records, int64_t capacity) const;

 private:
  // Held for a few dozen instructions, hardly ever by two threads.
  class Lock {
   public:
    explicit Lock(std::atomic_flag &flag) : flag_(flag) {
      while (flag_.test_and_set(std::memory_order_acquire)) sched_yield();
    }
    ~Lock() { flag_.clear(std::memory_order_release); }
    Lock(const Lock &) = delete;

   private:
    std::atomic_flag &flag_;
  };

  const SimulatedRanks *const ranks_;
  mutable std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::vector<lk_record> records_ = std::vector<lk_record>(kRecords);
  uint64_t count_ = 0;
};

}  // namespace lowerkit::collective
