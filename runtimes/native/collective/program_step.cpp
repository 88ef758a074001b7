#include "program_step.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace lowerkit::collective {
namespace {

constexpr size_t kManyStarted = 64;
constexpr auto kPause = std::chrono::microseconds(100);

// Fills `parts` with as many parts as it has, which lie one behind the other from `whole` on.
const lk_part *one_behind_the_other(std::vector<lk_part> &parts, void *whole, int64_t count, int64_t bytes) {
  auto *place = static_cast<uint8_t *>(whole);
  for (lk_part &part : parts) {
    part = {place, count};
    place += bytes;
  }
  return parts.data();
}

}  // namespace

ProgramStep::ProgramStep(Group &group)
    : group_(group), input_parts_(size_t(group.membership().size)), parts_(size_t(group.membership().size)) {
  started_.reserve(kManyStarted);
}

void ProgramStep::call(void *const *buffers, const int64_t *dims) {
  const int64_t phase = dims[0], ranks = dims[5];
  if (phase == LK_STEP_DONE) return finish(buffers);
  const Membership &membership = group_.membership();
  if (ranks != membership.size)
    throw Failure(LK_INVALID, "a step for " + std::to_string(ranks) + " ranks in a group of " +
                                  std::to_string(membership.size));
  lk_call call{};
  call.operation = int32_t(dims[1]);
  call.dtype = int32_t(dims[2]);
  call.reduction = int32_t(dims[3]);
  call.count = dims[4];
  call.root = int32_t(dims[6]);
  call.input = buffers[0];
  call.output = buffers[1];
  const int64_t bytes = call.count * lk_dtype_bytes(call.dtype);
  switch (call.operation) {
    case LK_ALL_GATHER:
      call.parts = one_behind_the_other(parts_, buffers[1], call.count, bytes);
      break;
    case LK_REDUCE_SCATTER:
      call.parts = one_behind_the_other(parts_, buffers[0], call.count, bytes);
      break;
    case LK_ALL_TO_ALL:
      call.input_parts = one_behind_the_other(input_parts_, buffers[0], call.count, bytes);
      call.parts = one_behind_the_other(parts_, buffers[1], call.count, bytes);
      break;
    case LK_BROADCAST:  // the native operation is in place
      if (call.root == membership.rank && bytes && buffers[0] != buffers[1])
        std::memcpy(buffers[1], buffers[0], size_t(bytes));
      break;
    case LK_REDUCE:
      if (call.root != membership.rank && bytes) std::memset(buffers[1], 0, size_t(bytes));
      break;
    default:
      break;
  }
  // How long a message is that came is told of works alone.
  if (phase != LK_STEP_START && call.operation != LK_RECEIVE) return group_.run(call);
  started_.push_back({buffers[0], buffers[1], call.operation == LK_RECEIVE ? bytes : -1, group_.start(call)});
  if (phase != LK_STEP_START) finish(buffers);
}

void ProgramStep::finish(void *const *buffers) {
  const auto found = std::find_if(started_.begin(), started_.end(), [&](const Started &started) {
    return started.input == buffers[0] && started.output == buffers[1];
  });
  if (found == started_.end()) throw Failure(LK_INVALID, "a step waits for a collective that none has started");
  group_.wait(found->work, 0);
  const int64_t expected = found->received, came = found->work->bytes;
  const int source = found->work->source;
  started_.erase(found);
  if (expected >= 0 && came != expected)
    throw Failure(LK_DESYNC, "receive of group '" + group_.membership().name + "', rank " +
                                 std::to_string(group_.membership().rank) + ": rank " + std::to_string(source) +
                                 " sends " + std::to_string(came) + " bytes, this rank expects " +
                                 std::to_string(expected));
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
