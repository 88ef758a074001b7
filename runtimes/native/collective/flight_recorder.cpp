#include "flight_recorder.h"

#include <algorithm>

namespace lowerkit::collective {

void Execution::start() {
  deadline = Deadline::in(deadline.timeout, recorder->now());
  record = recorder->start(*this, call.tag);
  recorder = nullptr;
}

uint64_t FlightRecorder::start(const Execution &execution, int64_t tag) {
  const Descriptor &descriptor = execution.descriptor;
  Lock lock(busy_);
  lk_record &record = records_[count_ % kRecords];
  record.sequence = execution.sequence;
  record.operation = descriptor.operation;
  record.dtype = descriptor.dtype;
  record.reduction = descriptor.reduction;
  record.root = descriptor.root;
  record.count = descriptor.count;
  record.tag = tag;
  record.dims = descriptor.dims;
  std::copy_n(descriptor.shape, descriptor.dims, record.shape);
  record.started = execution.deadline.started;
  record.finished = 0;
  record.waited = 0;
  record.waited_for = -1;
  record.status = LK_PENDING;
  return count_++;
}

void FlightRecorder::finish(const Execution &execution, lk_status status) {
  const int64_t moment = now();
  Lock lock(busy_);
  if (count_ - execution.record > kRecords) return;
  lk_record &record = records_[execution.record % kRecords];
  record.finished = moment;
  record.waited = execution.waiting.total;
  record.waited_for = execution.waiting.rank;
  record.status = status;
}

int64_t FlightRecorder::read(lk_record *records, int64_t capacity) const {
  Lock lock(busy_);
  const int64_t kept = int64_t(std::min(count_, kRecords));
  const int64_t given = std::min(kept, std::max<int64_t>(capacity, 0));
  // Kept on the clock that is read anyway; told on the one that other machines have too.
  const int64_t offset = ranks_ ? 0 : wall_nanoseconds() - monotonic_nanoseconds();
  for (int64_t i = 0; i < given; ++i) {
    records[i] = records_[(count_ - uint64_t(given) + uint64_t(i)) % kRecords];
    records[i].started += offset;
    if (records[i].finished) records[i].finished += offset;
  }
  return given;
}

}  // namespace lowerkit::collective
