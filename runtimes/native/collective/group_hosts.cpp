// Collectives of a group whose ranks are on several hosts.
//
//   leader   the first local rank of a host (in a broadcast, on the root's host, the root)
//
//   barrier      on each host, among the leaders, on each host
//   broadcast    from the root to the leaders, from each leader to its host
//   all_reduce   large, and all hosts have as many ranks: reduce_scatter on each host, all_reduce of each slice among
//   the
//                ranks that hold it, all_gather on each host: all connections carry a share
//                else: reduce to the leader, all_reduce among leaders, broadcast from each leader
//   the rest     over messages among all ranks; those between ranks of one host go through memory
#include <algorithm>

#include "group.h"
#include "algorithms/operations.h"
#include "reduce.h"

namespace lowerkit::collective {
namespace {

constexpr int64_t kLargeBytes = 64 << 10;
// Who waits for another host gives up so much earlier than who waits for it on its own: it knows which rank is to
// blame.
constexpr int64_t kEarlier = 200000000;

lk_call part_of(const lk_call &call, int operation) {
  lk_call part = call;
  part.operation = operation;
  part.root = 0;
  part.dims = 0;
  part.parts = part.input_parts = nullptr;
  return part;
}

}  // namespace

// Which rank leads each rank's host. Known after the first operation, on whose behalf all ask all.
void Group::learn_hosts(Execution &execution) {
  if (!leader_of_.empty()) return;
  const Envelope envelope = Envelope::hosts(execution.descriptor, execution.fingerprint, execution.sequence);
  const int32_t own = board_ ? board_->local_ranks()[0] : membership_.rank;
  std::vector<int32_t> leaders(static_cast<size_t>(membership_.size), own);
  std::vector<Request> requests(2 * leaders.size());
  std::vector<Request *> posted;
  for (int rank = 0; rank < membership_.size; ++rank) {
    if (rank == membership_.rank) continue;
    posted.push_back(&requests[2 * size_t(rank)]);
    messenger_->post_receive(*posted.back(), rank, envelope, &leaders[size_t(rank)], sizeof own, true);
    posted.push_back(&requests[2 * size_t(rank) + 1]);
    messenger_->post_send(*posted.back(), rank, envelope, &own, sizeof own);
  }
  messenger_->wait(posted.data(), posted.size(), execution.deadline, &execution.waiting);
  leader_of_ = std::move(leaders);
}

std::vector<int> Group::everyone() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < membership_.size; ++rank) ranks.push_back(rank);
  return ranks;
}

// The leaders, where `instead` leads its own host.
std::vector<int> Group::leaders(int instead) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < membership_.size; ++rank)
    if (leader_of_[size_t(rank)] == rank)
      ranks.push_back(instead >= 0 && leader_of_[size_t(instead)] == rank ? instead : rank);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void Group::among(const std::vector<int> &ranks, Execution &execution, const lk_call &call) {
  const Descriptor descriptor = describe(call);
  Deadline deadline = execution.deadline;
  if (board_) deadline.at -= std::min(kEarlier, deadline.timeout / 10);
  Execution part{call, descriptor, fingerprint(descriptor), execution.sequence, deadline, {}};
  run_over_messages(*messenger_, ranks, part);
  if (part.waiting.total) execution.waiting.add(part.waiting.total, part.waiting.rank);
}

void Group::execute_across_hosts(Execution &execution) {
  const lk_call &call = execution.call;
  execution.begin();
  // Not all operations go through memory here: of two that meet there by chance the numbers differ.
  execution.fingerprint = fingerprint_of_number(execution.fingerprint, execution.sequence);
  messenger_->begin_collective(Envelope::hosts(execution.descriptor, execution.fingerprint, execution.sequence));
  learn_hosts(execution);
  switch (call.operation) {
    case LK_BARRIER:
      return barrier_across_hosts(execution);
    case LK_BROADCAST:
      return broadcast_across_hosts(execution);
    case LK_ALL_REDUCE:
      return all_reduce_across_hosts(execution);
    default:
      return run_over_messages(*messenger_, everyone(), execution);
  }
}

void Group::barrier_across_hosts(Execution &execution) {
  if (board_) board_->run(execution, execution.call);
  if (leader_of_[size_t(membership_.rank)] == membership_.rank) among(leaders(-1), execution, execution.call);
  if (board_) board_->run(execution, execution.call);
}

void Group::broadcast_across_hosts(Execution &execution) {
  const lk_call &call = execution.call;
  const std::vector<int> led = leaders(call.root);
  if (std::find(led.begin(), led.end(), membership_.rank) != led.end()) among(led, execution, call);
  if (!board_) return;
  const std::vector<int> &local = board_->local_ranks();
  lk_call inside = call;
  inside.root = 0;
  for (size_t index = 0; index < local.size(); ++index)
    if (local[index] == call.root) inside.root = int32_t(index);
  board_->run(execution, inside);
}

void Group::all_reduce_across_hosts(Execution &execution) {
  const lk_call &call = execution.call;
  const int64_t element = kDtypeBytes[call.dtype];
  const std::vector<int> led = leaders(-1);
  const int hosts = int(led.size());
  const bool even = std::all_of(led.begin(), led.end(), [&](int leader) {
    return std::count(leader_of_.begin(), leader_of_.end(), leader) * hosts == membership_.size;
  });
  // The mean is taken once, at the end; each rank's factor is applied where its input is read.
  const int first = call.reduction == LK_AVG ? LK_SUM : call.reduction;
  const int later = call.reduction == LK_PREMUL_SUM ? LK_SUM : first;
  if (!board_ && hosts == membership_.size) {
    lk_call whole = call;
    whole.reduction = first;
    among(led, execution, whole);
  } else if (board_ && even && call.count * element >= kLargeBytes) {
    all_reduce_slices(execution, first, later);
  } else {
    lk_call inside = part_of(call, LK_REDUCE);
    inside.reduction = first;
    const bool leads = leader_of_[size_t(membership_.rank)] == membership_.rank;
    if (board_) board_->run(execution, inside);
    if (leads) {
      lk_call outside = part_of(call, LK_ALL_REDUCE);
      outside.reduction = later;
      if (board_) {
        outside.input = call.output;
      } else if (call.reduction == LK_PREMUL_SUM) {  // alone on its host: nobody has applied the factor yet
        reduce(call.output, &call.input, &call.factor, 1, call.count, call.dtype, LK_SUM);
        outside.input = call.output;
      }
      outside.dims = call.dims;
      among(led, execution, outside);
    }
    if (board_) board_->run(execution, part_of(call, LK_BROADCAST));
  }
  if (call.reduction == LK_AVG) divide(call.output, membership_.size, call.count, call.dtype);
}

void Group::all_reduce_slices(Execution &execution, int first, int later) {
  const lk_call &call = execution.call;
  const int64_t element = kDtypeBytes[call.dtype];
  const std::vector<int> &local = board_->local_ranks();
  const int ranks = int(local.size());
  auto *output = static_cast<uint8_t *>(call.output);
  auto *input = static_cast<uint8_t *>(const_cast<void *>(call.input));
  std::vector<lk_part> given, taken;
  for (int slice = 0; slice < ranks; ++slice) {
    const int64_t begin = call.count * slice / ranks, end = call.count * (slice + 1) / ranks;
    given.push_back({input + begin * element, end - begin});
    taken.push_back({output + begin * element, end - begin});
  }
  const lk_part own = taken[size_t(board_->index())];
  lk_call inside = part_of(call, LK_REDUCE_SCATTER);
  inside.reduction = first;
  inside.count = own.count;
  inside.output = own.data;
  inside.parts = given.data();
  board_->run(execution, inside);

  // The ranks with the same position on their hosts.
  std::vector<int> column;
  for (int leader : leaders(-1)) {
    int position = -1;
    for (int rank = 0; rank < membership_.size; ++rank)
      if (leader_of_[size_t(rank)] == leader && ++position == board_->index()) column.push_back(rank);
  }
  lk_call outside = part_of(call, LK_ALL_REDUCE);
  outside.reduction = later;
  outside.count = own.count;
  outside.input = outside.output = own.data;
  among(column, execution, outside);

  lk_call gather = part_of(call, LK_ALL_GATHER);
  gather.count = own.count;
  gather.input = own.data;
  gather.parts = taken.data();
  board_->run(execution, gather);
}

}  // namespace lowerkit::collective
