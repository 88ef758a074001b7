// The last operations of a group, for the time after a failure.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "operation.h"

namespace lowerkit::collective {

class FlightRecorder {
 public:
  static constexpr uint64_t kRecords = 1024;

  // Returns the number under which the operation is finished.
  uint64_t start(const Execution &execution, int64_t tag);
  void finish(uint64_t number, const Execution &execution, lk_status status);
  // Oldest first; at most `capacity`, the newest.
  int64_t read(lk_record *records, int64_t capacity) const;

 private:
  mutable std::mutex mutex_;
  std::vector<lk_record> records_ = std::vector<lk_record>(kRecords);
  uint64_t count_ = 0;
};

}  // namespace lowerkit::collective
