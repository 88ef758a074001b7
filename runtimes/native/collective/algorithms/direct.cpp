// Operations that move parts unchanged: each part goes straight from its owner to where it belongs, all at once.
// all_gather of little is Bruck's: ceil(log2 p) steps, each of which doubles what a rank has.
#include <algorithm>
#include <deque>

#include "algorithms.h"

namespace lowerkit::collective {

void gather(Exchange &exchange) {
  const lk_call &call = exchange.call;
  if (exchange.own != exchange.root) {
    Request sent;
    exchange.send(sent, exchange.root, 0, call.input, call.count, call.count);
    return exchange.wait(sent);
  }
  std::deque<Request> received;
  for (int i = 1; i < exchange.size; ++i) {
    const lk_part &part = call.parts[exchange.after(i)];
    exchange.receive(received.emplace_back(), exchange.after(i), 0, part.data, part.count, part.count);
  }
  copy(call.parts[exchange.own].data, call.input, call.count * exchange.element);
  for (Request &request : received) exchange.wait(request);
}

void scatter(Exchange &exchange) {
  const lk_call &call = exchange.call;
  if (exchange.own != exchange.root) {
    Request received;
    exchange.receive(received, exchange.root, 0, call.output, call.count, call.count);
    return exchange.wait(received);
  }
  std::deque<Request> sent;
  for (int i = 1; i < exchange.size; ++i) {
    const lk_part &part = call.parts[exchange.after(i)];
    exchange.send(sent.emplace_back(), exchange.after(i), 0, part.data, part.count, part.count);
  }
  copy(call.output, call.parts[exchange.own].data, call.count * exchange.element);
  for (Request &request : sent) exchange.wait(request);
}

void all_to_all(Exchange &exchange) {
  const lk_call &call = exchange.call;
  std::deque<Request> requests;
  for (int i = 1; i < exchange.size; ++i) {
    const lk_part &part = call.parts[exchange.after(-i)];
    exchange.receive(requests.emplace_back(), exchange.after(-i), 0, part.data, part.count, part.count);
  }
  // Each begins with another target, so that no rank has to take all at once.
  for (int i = 1; i < exchange.size; ++i) {
    const lk_part &part = call.input_parts[exchange.after(i)];
    exchange.send(requests.emplace_back(), exchange.after(i), 0, part.data, part.count, part.count);
  }
  const lk_part &own = call.input_parts[exchange.own];
  copy(call.parts[exchange.own].data, own.data, own.count * exchange.element);
  for (Request &request : requests) exchange.wait(request);
}

void bruck_all_gather(Exchange &exchange) {
  const lk_call &call = exchange.call;
  const int size = exchange.size;
  // The parts from the own one on, one behind the other; begins[i] is where that of position own + i begins, in
  // elements.
  std::vector<int64_t> begins(1, 0);
  for (int i = 0; i < size; ++i) begins.push_back(begins.back() + call.parts[exchange.after(i)].count);
  Scratch row(begins.back() * exchange.element);
  auto address = [&](int i) { return row.data() + begins[size_t(i)] * exchange.element; };
  copy(row.data(), call.parts[exchange.own].data, call.count * exchange.element);
  for (int distance = 1; distance < size; distance *= 2) {
    const int parts = std::min(distance, size - distance);
    const int64_t sends = begins[size_t(parts)];
    const int64_t receives = begins[size_t(distance + parts)] - begins[size_t(distance)];
    Request sent, received;
    exchange.receive(received, exchange.after(distance), distance, address(distance), receives, receives);
    exchange.send(sent, exchange.after(-distance), distance, row.data(), sends, sends);
    exchange.wait(received);
    exchange.wait(sent);
  }
  for (int i = 1; i < size; ++i) {
    const lk_part &part = call.parts[exchange.after(i)];
    copy(part.data, address(i), part.count * exchange.element);
  }
}

}  // namespace lowerkit::collective
