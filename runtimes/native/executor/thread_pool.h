// A fork-join pool whose shares are claimed, made for steps of a few microseconds on machines that may be busy.
//
// Vocabulary
//   caller      the thread that calls run(); it works too, as thread 0
//   worker      threads 1 .. threads-1, started once
//   share       a contiguous range of a job's tasks, one for each thread; where it begins depends on the job alone
//   generation  counts the jobs; a change tells the workers that a job is published
//   slot        a cache line for each share: the last generation that it was claimed for, the last that it was done for
//   parked      asleep in the kernel, after spinning in vain
//
// Steps of a job
//   1 the caller writes the job, then publishes its generation and the number of its shares (release)
//   2 a worker that sees them claims its own share, runs it, marks it as done, and goes on with the next shares as long
//     as nobody has claimed them
//   3 the caller runs share 0, then every share that is not claimed, then waits for those that are
// So a worker that does not run (the system has given its CPU to somebody else) holds nothing up: its share is taken by
// the caller. Only one that is interrupted in the middle of a share is waited for. Who runs a share changes no bit of
// what it computes: the ranges are fixed and a kernel keeps nothing from one range to the next.
//
// A claim is for one generation: it raises the slot from an older one by compare-and-swap. A worker that was asleep for
// many jobs and still believes in an old one finds a newer number in the slot, and takes nothing. One that did claim
// may read the job: the caller changes it only after that share is done. No lock and no allocation on this path. The
// cost is two cache line transfers a worker, as many as without claims: a slot is its worker's own.
//
// Parking (both directions) follows Dekker: the sleeper announces itself, then re-reads the word inside the futex call;
// the waker writes the word, then reads the announcement. Both in sequentially consistent order: no wake-up is lost.
//
// Small work stays with the caller: waking a worker that is parked costs some ten microseconds, a caller of a network
// of fifty has nothing from it. So parked workers are woken where the work is expected to last, or has already lasted,
// runs that follow each other closely counted as one. Workers that still spin take part in any case.
//
// Nested and concurrent use: a Lease takes the pool. Who finds it taken (a kernel that runs inside the pool, a second
// Python thread) runs its tasks on its own thread. After fork() the child starts workers of its own on first use.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace lowerkit {

class ThreadPool {
 public:
  // `thread` is 0 .. threads-1 and names the scratch to use.
  using Task = void (*)(void *context, int64_t begin, int64_t end, int thread);

  // Throws std::invalid_argument for fewer than 1 or more than 1024 threads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  int threads() const { return threads_; }

  class Lease {
   public:
    // `expected_nanoseconds` is how long the jobs of this lease took last time; -1 where that is not known.
    explicit Lease(ThreadPool &pool, int64_t expected_nanoseconds = -1);
    ~Lease();
    Lease(const Lease &) = delete;
    Lease &operator=(const Lease &) = delete;

    // Runs `task` over 0 .. count-1, split into one contiguous range per thread; one thread may run several of them,
    // one after another. Returns when all are done. A task must not throw.
    void run(int64_t count, Task task, void *context);

    // Since the lease was taken.
    int64_t elapsed_nanoseconds() const;

   private:
    ThreadPool &pool_;
    bool owner_;
    bool wakes_;  // whether a worker that is parked is worth waking
    int64_t start_;
  };

 private:
  static constexpr int kCacheLine = 64;

  // A generation in the low 48 bits, a number of shares above.
  using Published = uint64_t;

  struct alignas(kCacheLine) Slot {
    std::atomic<uint64_t> claimed{0};
    std::atomic<uint32_t> done{0};  // the low half: the kernel waits on 32 bits
  };

  struct Job {
    Task task;
    void *context;
    int64_t count;
  };

  void start_workers();
  void stop_workers();
  void wake_workers();
  void worker_loop(int thread, Published seen);
  void work(int thread, Published published);
  void run_share(const Job &job, int share, int thread) const;
  static bool claim(Slot &slot, uint64_t generation);
  void wait_for(Slot &slot, uint64_t generation);

  const int threads_;
  int64_t spin_nanoseconds_;
  uint32_t fork_count_;
  std::vector<Slot> slots_;  // [0] is the caller's and stays unused
  std::vector<std::thread> handles_;

  alignas(kCacheLine) std::atomic<Published> published_{0};
  alignas(kCacheLine) Job job_{};
  alignas(kCacheLine) std::atomic<uint32_t> workers_parked_{0};  // whether any is
  alignas(kCacheLine) std::atomic<uint32_t> caller_parked_{0};
  alignas(kCacheLine) std::atomic<bool> taken_{false};
  std::atomic<bool> stopping_{false};
  int64_t busy_since_ = 0;  // these two belong to who holds the lease: when runs began to follow each other closely,
  int64_t last_end_ = 0;    // and when the last one ended
};

}  // namespace lowerkit
