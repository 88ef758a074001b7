#include "shared_group.h"

#include <algorithm>
#include <chrono>

namespace nb = nanobind;

namespace lowerkit {
namespace {

constexpr auto kPause = std::chrono::microseconds(500);

}  // namespace

SharedGroup::Use::Use(const std::shared_ptr<SharedGroup> &shared) : shared_(shared) {
  if (shared_->closed_) raise_collective_error(LK_ABORTED, "the group was closed on this rank");
  shared_->enter();
}

SharedGroup::Use::~Use() { shared_->leave(); }

void SharedGroup::leave() {
  users_.erase(std::find(users_.begin(), users_.end(), std::this_thread::get_id()));
  if (closed_ && users_.empty()) destroy();
}

void SharedGroup::destroy() {
  lk_group *const group = group_;
  group_ = nullptr;
  if (!group) return;
  nb::gil_scoped_release released;
  lk_group_destroy(group);
}

void SharedGroup::close(const std::function<void()> &settle) {
  if (closed_) return;
  closed_ = true;
  const bool within = std::find(users_.begin(), users_.end(), std::this_thread::get_id()) != users_.end();
  // Else another call, when it is over, would destroy the group meanwhile.
  enter();
  struct Leaving {
    SharedGroup &shared;
    ~Leaving() { shared.leave(); }
  } leaving{*this};
  settle();
  if (users_.size() == 1) return;
  {
    nb::gil_scoped_release released;
    lk_group_abort(group_, "the group was closed on this rank while an operation was under way");
  }
  while (!within && users_.size() > 1) {
    {
      nb::gil_scoped_release released;
      std::this_thread::sleep_for(kPause);
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace lowerkit
