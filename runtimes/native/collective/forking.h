// What a child of fork() has of its parent's groups: nothing. It has no thread of theirs, locks may be taken for ever,
// and what it sent would be taken for the parent's. It gets rid of their descriptors, so that the others notice when the
// parent ends; calls fail, and nothing is destroyed.
#pragma once

#include <atomic>
#include <cstdint>

namespace lowerkit::collective {

// Forks that lie between this process and the one that made the first group. A group belongs to the process in which
// this number is that of its creation.
extern std::atomic<uint32_t> fork_count;

// Counts forks from now on.
void watch_forks();

// A descriptor that children of fork() do not keep: closed in them, and with this object. -1: none.
class ParentsDescriptor {
 public:
  explicit ParentsDescriptor(int descriptor = -1);
  ~ParentsDescriptor();
  ParentsDescriptor(ParentsDescriptor &&other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
  ParentsDescriptor &operator=(ParentsDescriptor &&) = delete;

  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace lowerkit::collective
