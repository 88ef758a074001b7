#include "operations.h"

#include <new>

#include "algorithms.h"

namespace lowerkit::collective {
namespace {

std::vector<Piece> pieces_of(const lk_part *parts, int size) {
  std::vector<Piece> pieces;
  for (int i = 0; i < size; ++i) pieces.push_back({parts[i].data, parts[i].count});
  return pieces;
}

void all_gather(Exchange &exchange) {
  const lk_call &call = exchange.call;
  int64_t total = 0;
  for (int i = 0; i < exchange.size; ++i) total += call.parts[i].count;
  copy(call.parts[exchange.own].data, call.input, call.count * exchange.element);
  if (total * exchange.element <= kSmallBytes) return bruck_all_gather(exchange);
  ring_all_gather(exchange, pieces_of(call.parts, exchange.size));
}

void reduce_scatter(Exchange &exchange) {
  const lk_call &call = exchange.call;
  ring_reduce_scatter(exchange, pieces_of(call.parts, exchange.size), call.output);
  exchange.finish_reduction(call.output, call.count);
}

void dispatch(Exchange &exchange) {
  bool small = exchange.call.count * exchange.element <= kSmallBytes;
  switch (exchange.call.operation) {
    case LK_BARRIER:
      return dissemination_barrier(exchange);
    case LK_BROADCAST:
      return small ? tree_broadcast(exchange) : chain_broadcast(exchange);
    case LK_REDUCE:
      return small ? tree_reduce(exchange) : ring_reduce(exchange);
    case LK_ALL_REDUCE:
      return small ? doubling_all_reduce(exchange) : ring_all_reduce(exchange);
    case LK_SCATTER:
      return scatter(exchange);
    case LK_GATHER:
      return gather(exchange);
    case LK_ALL_GATHER:
      return all_gather(exchange);
    case LK_REDUCE_SCATTER:
      return reduce_scatter(exchange);
    case LK_ALL_TO_ALL:
      return all_to_all(exchange);
    default:
      throw Failure(LK_INVALID,
                    std::string("operation ") + std::to_string(exchange.call.operation) + " is no collective");
  }
}

}  // namespace

void run_over_messages(Messenger &messenger, const std::vector<int> &ranks, Execution &execution) {
  messenger.membership().check();
  try {
    Exchange exchange(messenger, ranks, execution);
    dispatch(exchange);
  } catch (const std::bad_alloc &) {
    throw Failure(LK_RESOURCES, to_string(execution.descriptor, execution.sequence, messenger.membership().name,
                                          messenger.membership().rank) +
                                    ": no memory");
  }
  messenger.finish_operation(execution.sequence, execution.descriptor);
}

}  // namespace lowerkit::collective
