#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>

#include "futex.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Where the system may take a thread's CPU away with the greatest effect; the pool's native test holds threads there.
#ifndef LOWERKIT_AROUND_CLAIM
#define LOWERKIT_AROUND_CLAIM()
#endif

namespace lowerkit {
namespace {

// Long enough to bridge the gap between two steps, short enough not to be seen in `top`.
constexpr int64_t kSpinNanoseconds = 50'000;
constexpr int kPausesPerClockRead = 16;

// On a busy machine two threads of a pool may share a CPU; the one that spins then keeps the other from running. Who
// has waited for longer than a balanced step takes to finish offers its CPU. This costs half a microsecond where nobody
// wants it, and saves a hundred where somebody does.
constexpr int64_t kSpinBeforeYield = 3'000;

// Waking a parked worker costs 5 to 20 microseconds, and it comes 30 to 60 later.
constexpr int64_t kWorthWaking = 200'000;
constexpr int64_t kBusyBeforeWaking = 100'000;

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

int64_t now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// Counts the forks that lie between this process and its ancestor: a pool whose number differs has no threads here.
std::atomic<uint32_t> fork_count{0};

void count_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1); }); });
}

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return static_cast<int>(std::thread::hardware_concurrency());
  return CPU_COUNT(&set);
}

constexpr int kGenerationBits = 48;

uint64_t generation_of(uint64_t published) { return published & ((uint64_t{1} << kGenerationBits) - 1); }

int shares_of(uint64_t published) { return static_cast<int>(published >> kGenerationBits); }

// Spins until `ready()` or the budget is used up; tells which.
template <typename Ready>
bool spin(int64_t nanoseconds, Ready ready) {
  if (ready()) return true;
  if (nanoseconds == 0) return false;
  const int64_t start = now();
  for (int64_t waited = 0; waited < nanoseconds; waited = now() - start) {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      pause();
      if (ready()) return true;
    }
    if (waited > kSpinBeforeYield) sched_yield();
  }
  return ready();
}

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads), slots_(threads >= 1 && threads <= 1024 ? threads : 0) {
  if (threads < 1 || threads > 1024)
    throw std::invalid_argument("a thread pool has 1 to 1024 threads, not " + std::to_string(threads));
  // With more threads than CPUs a spinning thread keeps the one it waits for from running.
  spin_nanoseconds_ = threads > usable_cpus() ? 0 : kSpinNanoseconds;
  count_forks();
  fork_count_ = fork_count.load();
  try {
    start_workers();
  } catch (...) {  // the system has no more threads to give: end those that did start
    stop_workers();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  if (fork_count_ == fork_count.load())
    stop_workers();
  else
    new std::vector<std::thread>(std::move(handles_));  // the parent's threads: neither joinable nor ours, so leak them
}

void ThreadPool::stop_workers() {
  stopping_.store(true);
  published_.store(generation_of(published_.load()) + 1);
  wake_workers();
  for (std::thread &handle : handles_) handle.join();
}

void ThreadPool::start_workers() {
  handles_.reserve(threads_ - 1);
  const Published seen = published_.load();
  for (int thread = 1; thread < threads_; ++thread) handles_.emplace_back(&ThreadPool::worker_loop, this, thread, seen);
}

void ThreadPool::wake_workers() {
  // One call wakes all: who parks after it re-reads what was published first.
  if (workers_parked_.exchange(0)) futex_wake_all(published_);
}

void ThreadPool::run_share(const Job &job, int share, int thread) const {
  const int64_t base = job.count / threads_, extra = job.count % threads_;
  const int64_t begin = share * base + std::min<int64_t>(share, extra);
  job.task(job.context, begin, begin + base + (share < extra ? 1 : 0), thread);
}

bool ThreadPool::claim(Slot &slot, uint64_t generation) {
  LOWERKIT_AROUND_CLAIM();
  uint64_t before = slot.claimed.load(std::memory_order_relaxed);
  LOWERKIT_AROUND_CLAIM();
  return before < generation && slot.claimed.compare_exchange_strong(before, generation);
}

void ThreadPool::work(int thread, Published published) {
  const uint64_t generation = generation_of(published);
  for (int share = thread; share < shares_of(published) && claim(slots_[share], generation); ++share) {
    const Job job = job_;
    run_share(job, share, thread);
    slots_[share].done.store(static_cast<uint32_t>(generation));
    if (caller_parked_.load()) futex_wake_all(slots_[share].done);
  }
}

void ThreadPool::worker_loop(int thread, Published seen) {
  for (;;) {
    const auto changed = [&] { return published_.load(std::memory_order_acquire) != seen; };
    if (!spin(spin_nanoseconds_, changed)) {
      while (!changed()) {
        workers_parked_.store(1);
        futex_wait(published_, seen);
      }
    }
    seen = published_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    work(thread, seen);
  }
}

void ThreadPool::wait_for(Slot &slot, uint64_t generation) {
  const auto wanted = static_cast<uint32_t>(generation);
  const auto finished = [&] { return slot.done.load(std::memory_order_acquire) == wanted; };
  if (spin(spin_nanoseconds_, finished)) return;
  caller_parked_.store(1);
  for (uint32_t value; (value = slot.done.load()) != wanted;) futex_wait(slot.done, value);
  caller_parked_.store(0);
}

ThreadPool::Lease::Lease(ThreadPool &pool, int64_t expected_nanoseconds)
    : pool_(pool), wakes_(expected_nanoseconds < 0 || expected_nanoseconds >= kWorthWaking), start_(now()) {
  const uint32_t forks = fork_count.load(std::memory_order_relaxed);
  if (pool.fork_count_ != forks) {  // only one thread exists right after a fork: nobody else is in here
    pool.fork_count_ = forks;
    new std::vector<std::thread>(std::move(pool.handles_));
    pool.handles_.clear();
    pool.workers_parked_.store(0);
    pool.caller_parked_.store(0);
    pool.taken_.store(false);
    pool.start_workers();
  }
  owner_ = !pool.taken_.exchange(true, std::memory_order_acquire);
  if (owner_ && start_ - pool.last_end_ > kSpinNanoseconds) pool.busy_since_ = start_;
}

ThreadPool::Lease::~Lease() {
  if (!owner_) return;
  pool_.last_end_ = now();
  pool_.taken_.store(false, std::memory_order_release);
}

int64_t ThreadPool::Lease::elapsed_nanoseconds() const { return now() - start_; }

void ThreadPool::Lease::run(int64_t count, Task task, void *context) {
  if (count <= 0) return;
  if (count == 1 || pool_.threads_ == 1 || !owner_) {
    task(context, 0, count, 0);
    return;
  }
  const int shares = static_cast<int>(std::min<int64_t>(count, pool_.threads_));
  const uint64_t generation = generation_of(pool_.published_.load(std::memory_order_relaxed)) + 1;
  const Job job = {task, context, count};
  pool_.job_ = job;
  pool_.published_.store(static_cast<Published>(shares) << kGenerationBits | generation);
  if (pool_.workers_parked_.load()) {
    wakes_ = wakes_ || now() - pool_.busy_since_ >= kBusyBeforeWaking;
    if (wakes_) pool_.wake_workers();
  }
  pool_.run_share(job, 0, 0);
  for (int share = 1; share < shares; ++share) {
    ThreadPool::Slot &slot = pool_.slots_[share];
    if (!pool_.claim(slot, generation)) continue;
    pool_.run_share(job, share, 0);
    slot.done.store(static_cast<uint32_t>(generation), std::memory_order_relaxed);
  }
  for (int share = 1; share < shares; ++share) pool_.wait_for(pool_.slots_[share], generation);
}

}  // namespace lowerkit
