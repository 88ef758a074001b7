// Collectives as steps of a compiled program: what an executor calls, without anything between it and the group.
#pragma once

#include <memory>
#include <vector>

#include "group.h"

namespace lowerkit::collective {

// The collectives of one rank's runs, which follow each other. Everything it needs is allocated before the first one.
class ProgramStep {
 public:
  explicit ProgramStep(Group &group);

  // dims: phase, operation, type, reduction, count, ranks, root or peer; see lk_step_call.
  void call(void *const *buffers, const int64_t *dims);
  bool busy() const { return !started_.empty(); }
  // Returns when nothing that was started runs any more; how it ended is of no interest. Where a signal may end the wait,
  // throws Failure(LK_INTERRUPTED), and it may go on.
  void settle(bool interruptible);
  // The group is gone, and with it whatever ran.
  void forget() { started_.clear(); }

 private:
  // Of two with the same buffers it does not matter which one a step waits for: neither has any other.
  struct Started {
    const void *input;
    const void *output;
    int64_t received;  // bytes that have to come; -1: it is no receive
    std::shared_ptr<Work> work;
  };

  void finish(void *const *buffers);

  Group &group_;
  std::vector<lk_part> input_parts_;
  std::vector<lk_part> parts_;
  std::vector<Started> started_;
};

}  // namespace lowerkit::collective
