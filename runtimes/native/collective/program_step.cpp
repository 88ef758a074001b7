#include "program_step.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace lowerkit::collective {
namespace {

constexpr size_t kManyStarted = 64;
constexpr auto kPause = std::chrono::microseconds(100);

}  // namespace

ProgramStep::ProgramStep(Group &group) : group_(group), parts_(size_t(group.membership().size)) {
  started_.reserve(kManyStarted);
}

void ProgramStep::call(void *const *buffers, const int64_t *dims) {
  const int64_t phase = dims[0], ranks = dims[5];
  if (phase == LK_STEP_DONE) return finish(buffers[1]);
  if (ranks != group_.membership().size)
    throw Failure(LK_INVALID, "a step for " + std::to_string(ranks) + " ranks in a group of " +
                                  std::to_string(group_.membership().size));
  lk_call call{};
  call.operation = int32_t(dims[1]);
  call.dtype = int32_t(dims[2]);
  call.reduction = int32_t(dims[3]);
  call.count = dims[4];
  call.input = buffers[0];
  call.output = buffers[1];
  if (call.operation == LK_ALL_GATHER || call.operation == LK_REDUCE_SCATTER) {
    const int64_t bytes = call.count * lk_dtype_bytes(call.dtype);
    auto *whole = static_cast<uint8_t *>(buffers[call.operation == LK_ALL_GATHER ? 1 : 0]);
    for (int64_t rank = 0; rank < ranks; ++rank) parts_[size_t(rank)] = {whole + rank * bytes, call.count};
    call.parts = parts_.data();
  }
  if (phase != LK_STEP_START) return group_.run(call);
  started_.push_back({buffers[1], group_.start(call)});
}

void ProgramStep::finish(const void *output) {
  const auto found = std::find_if(started_.begin(), started_.end(),
                                  [&](const Started &started) { return started.output == output; });
  if (found == started_.end()) throw Failure(LK_INVALID, "a step waits for a collective that none has started");
  group_.wait(found->work, 0);
  started_.erase(found);
}

void ProgramStep::settle(bool interruptible) {
  for (const Started &started : started_) {
    while (!group_.over(*started.work)) {
      try {
        group_.wait(started.work, 0);
      } catch (const Failure &failure) {  // of the operation, or of the wait
        if (interruptible && failure.status() == LK_INTERRUPTED) throw;
      } catch (const RankDied &) {  // its other threads end at their next step
        std::this_thread::sleep_for(kPause);
      }
    }
  }
  started_.clear();
}

}  // namespace lowerkit::collective
