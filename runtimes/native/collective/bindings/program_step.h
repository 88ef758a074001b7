// The step of a compiled program as Python has it: it may outlive its group.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lowerkit_collective.h"
#include "shared_group.h"

namespace lowerkit {

class ProgramStep {
 public:
  // Raises CollectiveError, as all that follows does.
  explicit ProgramStep(std::shared_ptr<SharedGroup> shared);
  ~ProgramStep();
  ProgramStep(const ProgramStep &) = delete;
  ProgramStep &operator=(const ProgramStep &) = delete;

  uint64_t address() const { return reinterpret_cast<uint64_t>(step_); }
  // Between the two, in one thread, the group and its memory are there, though it may be closed.
  void begin();
  void end() { use_.reset(); }
  // Of a run that has begun and failed.
  void settle(const std::optional<std::string> &reason);

 private:
  const std::shared_ptr<SharedGroup> shared_;
  lk_step *step_ = nullptr;
  std::optional<SharedGroup::Use> use_;
};

}  // namespace lowerkit
