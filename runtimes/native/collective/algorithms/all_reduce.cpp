// all_reduce. Small: recursive doubling, log2 p steps of n bytes. Large: a ring reduce_scatter and a ring all_gather,
// 2 (p-1) / p n bytes each way.
//
// Both give all ranks the same bits: in recursive doubling the two of a pair reduce the same two values in the same
// order; in a ring each piece is reduced once and then only copied.
#include <utility>

#include "algorithms.h"
#include "reduce.h"

namespace lowerkit::collective {

void doubling_all_reduce(Exchange &exchange) {
  const lk_call &call = exchange.call;
  const int64_t bytes = call.count * exchange.element;
  Scratch scratch(bytes);
  exchange.take_input(call.output, call.input, call.count);

  // A power of two of positions takes part. Of the first 2 * extra, the odd hand their input to the even and wait.
  int power = 1;
  while (power * 2 <= exchange.size) power *= 2;
  const int extra = exchange.size - power;
  const bool paired = exchange.own < 2 * extra;
  auto meet = [&](int partner, int step) {
    Request sent, received;
    exchange.receive(received, partner, step, scratch.data(), call.count, call.count);
    exchange.send(sent, partner, step, call.output, call.count, call.count);
    exchange.wait(received);
    exchange.wait(sent);
    const void *sources[] = {call.output, scratch.data()};
    if (partner < exchange.own) std::swap(sources[0], sources[1]);
    reduce(call.output, sources, nullptr, 2, call.count, call.dtype, call.reduction);
  };
  if (paired && exchange.own % 2) {
    Request sent, received;
    // Sent from elsewhere: the result may come before this request is seen to be done.
    copy(scratch.data(), call.output, bytes);
    exchange.receive(received, exchange.own - 1, 1, call.output, call.count, call.count);
    exchange.send(sent, exchange.own - 1, 0, scratch.data(), call.count, call.count);
    exchange.wait(received);
    return exchange.wait(sent);
  }
  if (paired) {
    Request received;
    exchange.receive(received, exchange.own + 1, 0, scratch.data(), call.count, call.count);
    exchange.wait(received);
    const void *sources[] = {call.output, scratch.data()};
    reduce(call.output, sources, nullptr, 2, call.count, call.dtype, call.reduction);
  }
  const int number = paired ? exchange.own / 2 : exchange.own - extra;
  for (int bit = 1; bit < power; bit *= 2) {
    int other = number ^ bit;
    meet(other < extra ? other * 2 : other + extra, 1 + bit);
  }
  exchange.finish_reduction(call.output, call.count);
  if (paired) {
    Request sent;
    exchange.send(sent, exchange.own + 1, 1, call.output, call.count, call.count);
    exchange.wait(sent);
  }
}

void ring_all_reduce(Exchange &exchange) {
  const lk_call &call = exchange.call;
  auto inputs = split(const_cast<void *>(call.input), call.count, exchange.size, exchange.element);
  auto outputs = split(call.output, call.count, exchange.size, exchange.element);
  const Piece &own = outputs[size_t(exchange.own)];
  ring_reduce_scatter(exchange, inputs, own.data);
  exchange.finish_reduction(own.data, own.count);
  ring_all_gather(exchange, outputs);
}

}  // namespace lowerkit::collective
