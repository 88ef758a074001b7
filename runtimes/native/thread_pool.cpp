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

namespace lowerkit {
namespace {

// Long enough to bridge the gap between two steps, short enough not to be seen in `top`.
constexpr int64_t kSpinNanoseconds = 50'000;
constexpr int kPausesPerClockRead = 16;

// On a busy machine two threads of a pool may share a CPU; the one that spins then keeps the other from running. Who
// has waited for longer than a balanced step takes to finish offers its CPU. This costs half a microsecond where nobody
// wants it, and saves a hundred where somebody does.
constexpr int64_t kSpinBeforeYield = 3'000;

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

ThreadPool::ThreadPool(int threads) : threads_(threads), workers_(threads >= 1 && threads <= 1024 ? threads : 0) {
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
  generation_.fetch_add(1);
  futex_wake_all(generation_);
  for (std::thread &handle : handles_) handle.join();
}

void ThreadPool::start_workers() {
  handles_.reserve(threads_ - 1);
  const uint32_t generation = generation_.load();
  for (int thread = 1; thread < threads_; ++thread) {
    workers_[thread].done.store(generation);
    handles_.emplace_back(&ThreadPool::worker_loop, this, thread, generation);
  }
}

void ThreadPool::run_share(int thread) const {
  const int64_t base = job_.count / threads_, extra = job_.count % threads_;
  const int64_t begin = thread * base + std::min<int64_t>(thread, extra);
  const int64_t end = begin + base + (thread < extra ? 1 : 0);
  if (begin < end) job_.task(job_.context, begin, end, thread);
}

void ThreadPool::worker_loop(int thread, uint32_t seen) {
  Worker &self = workers_[thread];
  for (;;) {
    const auto changed = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    if (!spin(spin_nanoseconds_, changed)) {
      parked_workers_.fetch_add(1);
      while (generation_.load() == seen) futex_wait(generation_, seen);
      parked_workers_.fetch_sub(1);
    }
    // Not "load again": the caller publishes the next job only after this one is acknowledged.
    ++seen;
    if (stopping_.load(std::memory_order_relaxed)) return;
    run_share(thread);
    self.done.store(seen);
    if (caller_parked_.load()) futex_wake_all(self.done);
  }
}

void ThreadPool::wait_for(Worker &worker, uint32_t generation) {
  const auto finished = [&] { return worker.done.load(std::memory_order_acquire) == generation; };
  if (spin(spin_nanoseconds_, finished)) return;
  caller_parked_.store(1);
  for (uint32_t value; (value = worker.done.load()) != generation;) futex_wait(worker.done, value);
  caller_parked_.store(0);
}

ThreadPool::Lease::Lease(ThreadPool &pool) : pool_(pool) {
  const uint32_t forks = fork_count.load(std::memory_order_relaxed);
  if (pool.fork_count_ != forks) {  // only one thread exists right after a fork: nobody else is in here
    pool.fork_count_ = forks;
    new std::vector<std::thread>(std::move(pool.handles_));
    pool.handles_.clear();
    pool.parked_workers_.store(0);
    pool.caller_parked_.store(0);
    pool.taken_.store(false);
    pool.start_workers();
  }
  owner_ = !pool.taken_.exchange(true, std::memory_order_acquire);
}

ThreadPool::Lease::~Lease() {
  if (owner_) pool_.taken_.store(false, std::memory_order_release);
}

void ThreadPool::Lease::run(int64_t count, Task task, void *context) {
  if (count <= 0) return;
  if (count == 1 || pool_.threads_ == 1 || !owner_) {
    task(context, 0, count, 0);
    return;
  }
  pool_.job_ = {task, context, count};
  const uint32_t generation = pool_.generation_.load(std::memory_order_relaxed) + 1;
  pool_.generation_.store(generation);
  if (pool_.parked_workers_.load()) futex_wake_all(pool_.generation_);
  pool_.run_share(0);
  for (int thread = 1; thread < pool_.threads_; ++thread) pool_.wait_for(pool_.workers_[thread], generation);
}

}  // namespace lowerkit
