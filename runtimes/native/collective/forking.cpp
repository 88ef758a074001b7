#include "forking.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace lowerkit::collective {

std::atomic<uint32_t> fork_count{0};

namespace {

// Never destroyed: groups that are open when the process ends still have descriptors.
struct Kept {
  std::mutex mutex;
  std::set<int> descriptors;
};

Kept &kept() {
  static auto *const all = new Kept;
  return *all;
}

// Held while the process forks: the child finds the set whole.
void before_fork() { kept().mutex.lock(); }
void after_fork_in_parent() { kept().mutex.unlock(); }
void after_fork_in_child() {
  fork_count.fetch_add(1, std::memory_order_relaxed);
  for (int descriptor : kept().descriptors) close(descriptor);
  kept().descriptors.clear();
  kept().mutex.unlock();
}

}  // namespace

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); });
}

ParentsDescriptor::ParentsDescriptor(int descriptor) : descriptor_(descriptor) {
  if (descriptor_ < 0) return;
  watch_forks();
  std::lock_guard<std::mutex> lock(kept().mutex);
  kept().descriptors.insert(descriptor_);
}

ParentsDescriptor::~ParentsDescriptor() {
  if (descriptor_ < 0) return;
  std::lock_guard<std::mutex> lock(kept().mutex);
  if (kept().descriptors.erase(descriptor_)) close(descriptor_);
}

}  // namespace lowerkit::collective
