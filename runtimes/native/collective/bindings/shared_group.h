// A group of the C interface as Python has it: closed by one thread while others are in calls of it.
//
// All members are guarded by the interpreter's lock, so that a call costs no atomic operation more.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lowerkit_collective.h"

namespace lowerkit {

// Raises CollectiveError(status, message), or what the handler of a signal raised.
[[noreturn]] void raise_collective_error(lk_status status, const char *message);

class SharedGroup {
 public:
  // A call that is under way: the group lives until it is over. Raises CollectiveError (LK_ABORTED) where the group was
  // closed.
  class Use {
   public:
    explicit Use(const std::shared_ptr<SharedGroup> &shared);
    ~Use();
    Use(const Use &) = delete;
    Use &operator=(const Use &) = delete;
    lk_group *get() const { return shared_->group_; }

   private:
    const std::shared_ptr<SharedGroup> shared_;
  };

  explicit SharedGroup(lk_group *group) : group_(group) {}
  ~SharedGroup() { destroy(); }
  SharedGroup(const SharedGroup &) = delete;
  SharedGroup &operator=(const SharedGroup &) = delete;

  bool closed() const { return closed_; }
  // Calls that begin now fail; `settle` is run, then those under way are ended, and waited for; then the group is
  // destroyed. Where a call under way is this thread's own (a handler closes the group), the last one destroys it.
  // Raises what the handler of a signal raises meanwhile.
  void close(const std::function<void()> &settle);

 private:
  void enter() { users_.push_back(std::this_thread::get_id()); }
  void leave();
  void destroy();

  lk_group *group_;
  std::vector<std::thread::id> users_;
  bool closed_ = false;
};

}  // namespace lowerkit
