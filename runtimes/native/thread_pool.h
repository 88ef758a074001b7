// A fork-join pool with a static split, made for steps of a few microseconds.
//
// Vocabulary
//   caller      the thread that calls run(); it works too, as thread 0
//   worker      threads 1 .. threads-1, started once
//   generation  counts the jobs; a change tells the workers that a job is published
//   done        one word per worker, on its own cache line: the last generation it finished
//   parked      asleep in the kernel, after spinning in vain
//
// Steps of a job
//   1 the caller writes the job, then increments `generation` (release)
//   2 each worker sees the change, runs its contiguous share of the tasks, stores `done` = generation
//   3 the caller runs share 0, then waits for each `done`
// No lock, no allocation and no compare-and-swap on this path. The cost is two cache line transfers a worker.
//
// Parking (both directions) follows Dekker: the sleeper announces itself, then re-reads the word inside the futex call;
// the waker writes the word, then reads the announcement. Both in sequentially consistent order: no wake-up is lost.
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
    explicit Lease(ThreadPool &pool);
    ~Lease();
    Lease(const Lease &) = delete;
    Lease &operator=(const Lease &) = delete;

    // Runs `task` over 0 .. count-1, split into one contiguous range per thread. Returns when all are done.
    // A task must not throw.
    void run(int64_t count, Task task, void *context);

   private:
    ThreadPool &pool_;
    bool owner_;
  };

 private:
  static constexpr int kCacheLine = 64;

  struct alignas(kCacheLine) Worker {
    std::atomic<uint32_t> done{0};
  };

  struct Job {
    Task task;
    void *context;
    int64_t count;
  };

  void start_workers();
  void stop_workers();
  void worker_loop(int thread, uint32_t seen);
  void run_share(int thread) const;
  void wait_for(Worker &worker, uint32_t generation);

  const int threads_;
  int64_t spin_nanoseconds_;
  uint32_t fork_count_;
  std::vector<Worker> workers_;  // [0] is the caller's and stays unused
  std::vector<std::thread> handles_;

  alignas(kCacheLine) std::atomic<uint32_t> generation_{0};
  alignas(kCacheLine) Job job_{};
  alignas(kCacheLine) std::atomic<uint32_t> parked_workers_{0};
  alignas(kCacheLine) std::atomic<uint32_t> caller_parked_{0};
  alignas(kCacheLine) std::atomic<bool> taken_{false};
  std::atomic<bool> stopping_{false};
};

}  // namespace lowerkit
