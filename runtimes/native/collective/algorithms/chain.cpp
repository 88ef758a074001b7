// broadcast of much: a chain from the root on, each position passing on the chunks that it got: n bytes over each
// connection, and p-2 chunks' time on top.
#include <algorithm>
#include <array>

#include "algorithms.h"

namespace lowerkit::collective {

void chain_broadcast(Exchange &exchange) {
  constexpr int64_t kWindow = 4;
  constexpr int64_t kChunkBytes = 256 << 10;
  const lk_call &call = exchange.call;
  const bool first = exchange.own == exchange.root;
  const bool last = exchange.after(1) == exchange.root;
  const int64_t length = kChunkBytes / exchange.element;
  const int64_t chunks = (call.count + length - 1) / length;
  std::array<Request, kWindow> sent, received;
  auto address = [&](int64_t i) { return static_cast<char *>(call.output) + i * length * exchange.element; };
  auto count = [&](int64_t i) { return std::min(length, call.count - i * length); };
  auto post_receive = [&](int64_t i) {
    if (first || i >= chunks) return;
    exchange.receive(received[size_t(i % kWindow)], exchange.after(-1), i, address(i), count(i), call.count);
  };
  for (int64_t i = 0; i < kWindow; ++i) post_receive(i);
  for (int64_t i = 0; i < chunks; ++i) {
    if (!first) exchange.wait(received[size_t(i % kWindow)]);
    post_receive(i + kWindow);
    if (last) continue;
    if (i >= kWindow) exchange.wait(sent[size_t(i % kWindow)]);
    exchange.send(sent[size_t(i % kWindow)], exchange.after(1), i, address(i), count(i), call.count);
  }
  if (last) return;
  for (int64_t i = 0; i < std::min(chunks, kWindow); ++i) exchange.wait(sent[size_t(i)]);
}

}  // namespace lowerkit::collective
