// One collective among an ordered set of ranks, as its algorithm sees it: positions 0 .. size-1, steps, element counts.
#pragma once

#include <memory>
#include <vector>

#include "messenger/messenger.h"
#include "operation.h"

namespace lowerkit::collective {

// Memory of one operation, at a multiple of 64.
class Scratch {
 public:
  explicit Scratch(int64_t bytes);  // throws Failure(LK_RESOURCES)
  char *data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(char *memory) const;
  };
  std::unique_ptr<char, Free> data_;
};

class Exchange {
 public:
  // Throws Failure(LK_INVALID) where the messenger's rank or the call's root is not among `ranks`.
  Exchange(Messenger &messenger, const std::vector<int> &ranks, Execution &execution);

  // Messages of `count` elements. `whole` is what both sides compare: the length of the part that the message is of.
  void send(Request &request, int to, int64_t step, const void *data, int64_t count, int64_t whole);
  void receive(Request &request, int from, int64_t step, void *data, int64_t count, int64_t whole);
  void wait(Request &request);

  // The position `distance` further on; distances may be negative.
  int after(int distance) const { return ((own + distance) % size + size) % size; }

  // The factors for `sources` of a reduction where number `place` is this rank's input: null where nothing is
  // multiplied.
  const double *factors(int sources, int place);
  // target = the input of this rank as the reduction takes it.
  void take_input(void *target, const void *input, int64_t count);
  // LK_AVG: from the sum to the mean.
  void finish_reduction(void *data, int64_t count) const;

  const lk_call &call;
  const int size;
  int own;
  int root = 0;
  const int64_t element;  // bytes

 private:
  Envelope envelope(int64_t step, int64_t whole) const;
  uint64_t fingerprint_with_parts() const;

  Messenger &messenger_;
  const std::vector<int> &ranks_;
  Execution &execution_;
  const uint64_t fingerprint_;
  double factors_[2] = {1, 1};
};

inline void copy(void *target, const void *source, int64_t bytes) {
  if (bytes && target != source) __builtin_memmove(target, source, size_t(bytes));
}

}  // namespace lowerkit::collective
