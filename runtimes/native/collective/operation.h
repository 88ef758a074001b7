// What ranks compare before they exchange a byte, and what all engines are told about the group they serve.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "clock.h"
#include "dtypes.h"
#include "failure.h"
#include "lowerkit_collective.h"

namespace lowerkit::collective {

// The part of a call that must agree between ranks (all but `count`, which may differ where parts may be unequal), in a
// form that can lie in shared memory or in a message.
struct Descriptor {
  uint8_t operation = 0;
  uint8_t dtype = 0;
  uint8_t reduction = 0;
  uint8_t dims = 0;
  int32_t root = 0;
  int64_t count = 0;
  int64_t shape[LK_MAX_DIMS] = {};
};
static_assert(sizeof(Descriptor) == 80);

Descriptor describe(const lk_call &call);

// Never 0. Equal for calls that belong together.
uint64_t fingerprint(const Descriptor &descriptor);

// As well the sizes of all parts, where every rank knows them (all_gather, reduce_scatter).
uint64_t fingerprint(const Descriptor &descriptor, const lk_part *parts, int count);

// As well the operation's number.
uint64_t fingerprint_of_number(uint64_t fingerprint, uint64_t sequence);

// Throws Failure(LK_INVALID) that lists everything wrong with the call on this rank.
void validate(const lk_call &call, const std::string &group, int rank, int size);

// "all_reduce(sum, f32 x 12, shape 3x4)", "broadcast(f32 x 12, root 0)", "barrier()".
std::string to_string(const Descriptor &descriptor);

// "all_reduce #17 (sum, f32 x 12, shape 3x4) of group 'world', rank 0": how every error begins.
std::string to_string(const Descriptor &descriptor, uint64_t sequence, const std::string &group, int rank);

// Who communicates, and whether the group still lives. Shared by the engines of one group; thread-safe.
class Membership {
 public:
  Membership(std::string name, int rank, int size);

  const std::string name;
  const int rank;
  const int size;

  // The first reason stays. Makes every later check() throw.
  void abort(lk_status cause, const std::string &reason, int rank);
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  // Throws Failure(LK_ABORTED) with the first reason.
  void check() const {
    if (aborted()) throw_aborted();
  }
  std::string reason() const;

  void mark_dead(int rank) { dead_[size_t(rank)].store(true, std::memory_order_release); }
  bool dead(int rank) const { return dead_[size_t(rank)].load(std::memory_order_acquire); }

 private:
  [[noreturn]] void throw_aborted() const;

  std::atomic<bool> aborted_{false};
  std::vector<std::atomic<bool>> dead_;
  mutable std::mutex mutex_;
  lk_status cause_ = LK_OK;
  std::string reason_;
  int blamed_ = -1;
};

// Time that one operation lost by waiting, for the flight recorder.
struct Waiting {
  int64_t total = 0;
  int64_t longest = 0;
  int rank = -1;

  void add(int64_t nanoseconds, int peer) {
    total += nanoseconds;
    if (nanoseconds > longest) {
      longest = nanoseconds;
      rank = peer;
    }
  }
};

class FlightRecorder;

// One running operation, as the engines see it.
struct Execution {
  const lk_call &call;
  Descriptor descriptor;
  uint64_t fingerprint;
  uint64_t sequence;
  Deadline deadline;
  Waiting waiting;

  FlightRecorder *recorder = nullptr;  // until begin()
  uint64_t record = 0;

  // Starts the deadline and the record, unless they were. An engine whose first step never waits takes that step
  // before: the clock is then read while the others' data is on its way.
  void begin() {
    if (recorder) start();
  }

  void start();
};

}  // namespace lowerkit::collective
