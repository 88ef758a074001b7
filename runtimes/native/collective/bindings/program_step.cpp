#include "program_step.h"

#include <utility>

namespace nb = nanobind;

namespace lowerkit {
namespace {

void check(lk_status status) {
  if (status != LK_OK) raise_collective_error(status, lk_last_error());
}

}  // namespace

ProgramStep::ProgramStep(std::shared_ptr<SharedGroup> shared) : shared_(std::move(shared)) {
  SharedGroup::Use use(shared_);
  check(lk_step_create(use.get(), &step_));
}

ProgramStep::~ProgramStep() {
  use_.reset();
  nb::gil_scoped_release released;
  lk_step_release(step_);
}

void ProgramStep::begin() {
  if (use_) raise_collective_error(LK_INVALID, "a run has begun already");
  use_.emplace(shared_);
  const lk_status status = lk_step_begin(step_);
  if (status == LK_OK) return;
  use_.reset();
  check(status);
}

void ProgramStep::settle(const std::optional<std::string> &reason) {
  lk_status status;
  {
    nb::gil_scoped_release released;
    status = lk_step_settle(step_, reason ? reason->c_str() : nullptr);
  }
  check(status);
}

}  // namespace lowerkit
