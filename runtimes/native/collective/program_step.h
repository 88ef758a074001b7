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

  // dims: phase, operation, type, reduction, count, ranks; see lk_step_call.
  void call(void *const *buffers, const int64_t *dims);
  bool busy() const { return !started_.empty(); }
  // Returns when nothing that was started runs any more; how it ended is of no interest. Where a signal may end the wait,
  // throws Failure(LK_INTERRUPTED), and it may go on.
  void settle(bool interruptible);
  // The group is gone, and with it whatever ran.
  void forget() { started_.clear(); }

 private:
  struct Started {
    const void *output;
    std::shared_ptr<Work> work;
  };

  void finish(const void *output);

  Group &group_;
  std::vector<lk_part> parts_;
  std::vector<Started> started_;
};

}  // namespace lowerkit::collective
