#include "exchange.h"

#include <algorithm>
#include <cstdlib>

#include "reduce.h"

namespace lowerkit::collective {

Scratch::Scratch(int64_t bytes) {
  // Never of size 0: the address must be one.
  size_t rounded = (size_t(bytes) + 64) / 64 * 64;
  data_.reset(static_cast<char *>(std::aligned_alloc(64, rounded)));
  if (!data_) throw Failure(LK_RESOURCES, "no memory for " + std::to_string(bytes) + " bytes of an operation");
}

void Scratch::Free::operator()(char *memory) const { std::free(memory); }

Exchange::Exchange(Messenger &messenger, const std::vector<int> &ranks, Execution &execution)
    : call(execution.call),
      size(int(ranks.size())),
      element(kDtypeBytes[execution.call.operation == LK_BARRIER ? LK_U8 : execution.call.dtype]),
      messenger_(messenger),
      ranks_(ranks),
      execution_(execution),
      fingerprint_(fingerprint_with_parts()) {
  auto position = [&](int rank) {
    auto found = std::find(ranks.begin(), ranks.end(), rank);
    if (found == ranks.end())
      throw Failure(LK_INVALID, to_string(execution.descriptor, execution.sequence, messenger.membership().name,
                                          messenger.membership().rank) +
                                    ": rank " + std::to_string(rank) + " does not take part");
    return int(found - ranks.begin());
  };
  own = position(messenger.membership().rank);
  if (has_root(call.operation)) root = position(call.root);
}

// Where every rank states the lengths of all parts, they are compared all at once: ranks that differ about a part of a
// third would take different ways and miss each other.
uint64_t Exchange::fingerprint_with_parts() const {
  uint64_t hash = execution_.fingerprint;
  if (call.operation == LK_ALL_GATHER || call.operation == LK_REDUCE_SCATTER)
    for (int i = 0; i < size; ++i) {
      hash ^= uint64_t(call.parts[i].count) + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
      hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
    }
  return hash ? hash : 1;
}

Envelope Exchange::envelope(int64_t step, int64_t whole) const {
  return Envelope::step(execution_.descriptor, fingerprint_, execution_.sequence, step, whole);
}

void Exchange::send(Request &request, int to, int64_t step, const void *data, int64_t count, int64_t whole) {
  messenger_.post_send(request, ranks_[size_t(to)], envelope(step, whole), data, count * element);
}

void Exchange::receive(Request &request, int from, int64_t step, void *data, int64_t count, int64_t whole) {
  messenger_.post_receive(request, ranks_[size_t(from)], envelope(step, whole), data, count * element, true);
}

void Exchange::wait(Request &request) { messenger_.wait(request, execution_.deadline, &execution_.waiting); }

const double *Exchange::factors(int sources, int place) {
  if (call.reduction != LK_PREMUL_SUM) return nullptr;
  for (int i = 0; i < sources; ++i) factors_[i] = i == place ? call.factor : 1;
  return factors_;
}

void Exchange::take_input(void *target, const void *input, int64_t count) {
  reduce(target, &input, factors(1, 0), 1, count, call.dtype, call.reduction);
}

void Exchange::finish_reduction(void *data, int64_t count) const {
  if (call.reduction == LK_AVG) divide(data, size, count, call.dtype);
}

}  // namespace lowerkit::collective
