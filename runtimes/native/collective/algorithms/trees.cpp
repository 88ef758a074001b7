// Binomial trees and dissemination: ceil(log2 p) steps, for what is small.
//
// Positions are counted from the root on. In a tree, position r has the parent r without its lowest set bit, and the
// children r + 1, r + 2, r + 4 ... below that bit.
#include <deque>

#include "algorithms.h"
#include "reduce.h"

namespace lowerkit::collective {
namespace {

int from_root(const Exchange &exchange) { return (exchange.own - exchange.root + exchange.size) % exchange.size; }
int position(const Exchange &exchange, int relative) { return (relative + exchange.root) % exchange.size; }

}  // namespace

void dissemination_barrier(Exchange &exchange) {
  for (int distance = 1; distance < exchange.size; distance *= 2) {
    Request sent, received;
    exchange.receive(received, exchange.after(-distance), distance, nullptr, 0, 0);
    exchange.send(sent, exchange.after(distance), distance, nullptr, 0, 0);
    exchange.wait(received);
    exchange.wait(sent);
  }
}

void tree_broadcast(Exchange &exchange) {
  const lk_call &call = exchange.call;
  const int relative = from_root(exchange);
  int bit = 1;
  while (bit < exchange.size && !(relative & bit)) bit *= 2;
  if (relative) {
    Request received;
    exchange.receive(received, position(exchange, relative - bit), 0, call.output, call.count, call.count);
    exchange.wait(received);
  }
  std::deque<Request> sent;
  for (bit /= 2; bit > 0; bit /= 2)
    if (relative + bit < exchange.size)
      exchange.send(sent.emplace_back(), position(exchange, relative + bit), 0, call.output, call.count, call.count);
  for (Request &request : sent) exchange.wait(request);
}

void tree_reduce(Exchange &exchange) {
  const lk_call &call = exchange.call;
  const int relative = from_root(exchange);
  const int64_t bytes = call.count * exchange.element;
  Scratch scratch(2 * bytes);
  char *sum = relative ? scratch.data() + bytes : static_cast<char *>(call.output);
  exchange.take_input(sum, call.input, call.count);
  for (int bit = 1; bit < exchange.size; bit *= 2) {
    Request request;
    if (relative & bit) {
      exchange.send(request, position(exchange, relative - bit), 0, sum, call.count, call.count);
      return exchange.wait(request);
    }
    if (relative + bit >= exchange.size) continue;
    exchange.receive(request, position(exchange, relative + bit), 0, scratch.data(), call.count, call.count);
    exchange.wait(request);
    const void *sources[] = {sum, scratch.data()};
    reduce(sum, sources, nullptr, 2, call.count, call.dtype, call.reduction);
  }
  exchange.finish_reduction(sum, call.count);
}

}  // namespace lowerkit::collective
