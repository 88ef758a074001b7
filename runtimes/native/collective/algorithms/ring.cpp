// Rings: everyone sends to the next position and receives from the one before, p-1 steps, (p-1)/p n bytes each way.
//
// Pieces are cut into chunks. kWindow chunks make a batch; a batch goes through all steps, then the next one. So
// receiving, reducing and sending overlap, and what is in flight fits into 4 * kWindow chunks, however long the pieces.
//   item t   one chunk in one step: batch t / ((p-1) kWindow), step t / kWindow mod (p-1), chunk t mod kWindow of its
//   batch item t + kWindow is the same chunk one step on: what was received with t is sent with it
// Receives run kWindow items ahead. Item t is sent before item t is waited for: no ring of waiting ranks can close.
#include <algorithm>
#include <array>
#include <deque>

#include "algorithms.h"
#include "reduce.h"

namespace lowerkit::collective {
namespace {

constexpr int kWindow = 4;
constexpr int64_t kLeastChunkBytes = 16 << 10;
constexpr int64_t kMostChunkBytes = 256 << 10;

// Steps of different phases of one operation must not be taken for each other.
constexpr int64_t kPhase = int64_t(1) << 60;

struct Chunks {
  Chunks(const Exchange &exchange, const std::vector<Piece> &pieces) : element(exchange.element) {
    int64_t longest = 0;
    for (const Piece &piece : pieces) longest = std::max(longest, piece.count);
    int64_t bytes = std::clamp(longest * element / kWindow, kLeastChunkBytes, kMostChunkBytes);
    length = std::max<int64_t>(bytes / 64 * 64 / element, 1);
    count = std::max<int64_t>((longest + length - 1) / length, 1);
  }
  // Elements of a piece that lie in chunk `number`.
  Piece of(const Piece &piece, int64_t number) const {
    int64_t begin = std::min(number * length, piece.count);
    int64_t end = std::min(begin + length, piece.count);
    return {static_cast<char *>(piece.data) + begin * element, end - begin};
  }

  const int64_t element;
  int64_t length;  // elements
  int64_t count;   // of the longest piece
};

struct Item {
  int step;
  int64_t chunk;
  int64_t tag;
};

// `Work` says where what is sent and received lies, and what to do with it.
template <class Work>
void run_ring(Exchange &exchange, const std::vector<Piece> &pieces, const Chunks &chunks, int64_t phase, Work &work) {
  const int steps = exchange.size - 1;
  if (steps == 0) return;
  const int64_t batches = (chunks.count + kWindow - 1) / kWindow;
  const int64_t items = batches * steps * kWindow;
  const int next = exchange.after(1), previous = exchange.after(-1);
  std::array<Request, 2 * kWindow> sent, received;

  auto item_of = [&](int64_t t) {
    Item item;
    item.step = int(t / kWindow % steps);
    item.chunk = t / (steps * kWindow) * kWindow + t % kWindow;
    item.tag = phase + item.chunk * steps + item.step;
    return item;
  };
  // The first chunk of an empty piece is sent all the same: so a rank that thinks otherwise is found out.
  auto exists = [&](const Piece &chunk, const Item &item) { return chunk.count > 0 || item.chunk == 0; };
  auto post_receive = [&](int64_t t) {
    if (t >= items) return;
    Item item = item_of(t);
    const Piece &piece = pieces[size_t(work.piece_received(item.step))];
    Piece chunk = chunks.of(piece, item.chunk);
    if (!exists(chunk, item)) return;
    void *target = work.target(t, chunk);
    exchange.receive(received[size_t(t % (2 * kWindow))], previous, item.tag, target, chunk.count, piece.count);
  };
  auto post_send = [&](int64_t t) {
    if (t >= items) return;
    Item item = item_of(t);
    const Piece &piece = pieces[size_t(work.piece_sent(item.step))];
    Piece chunk = chunks.of(piece, item.chunk);
    if (!exists(chunk, item)) return;
    const void *source = work.source(t, item, chunk);
    exchange.send(sent[size_t(t % (2 * kWindow))], next, item.tag, source, chunk.count, piece.count);
  };
  for (int64_t t = 0; t < kWindow; ++t) post_receive(t);
  for (int64_t t = 0; t < kWindow; ++t) post_send(t);
  for (int64_t t = 0; t < items; ++t) {
    Item item = item_of(t);
    Piece chunk = chunks.of(pieces[size_t(work.piece_received(item.step))], item.chunk);
    if (exists(chunk, item)) {
      exchange.wait(received[size_t(t % (2 * kWindow))]);
      work.arrived(t, item, chunk);
    }
    post_send(t + kWindow);
    Piece outgoing = chunks.of(pieces[size_t(work.piece_sent(item.step))], item.chunk);
    if (exists(outgoing, item)) exchange.wait(sent[size_t(t % (2 * kWindow))]);
    post_receive(t + kWindow);
  }
}

class Gathering {
 public:
  explicit Gathering(const Exchange &exchange) : exchange_(exchange) {}

  int piece_sent(int step) const { return exchange_.after(-step); }
  int piece_received(int step) const { return exchange_.after(-step - 1); }
  void *target(int64_t, const Piece &chunk) const { return chunk.data; }
  const void *source(int64_t, const Item &, const Piece &chunk) const { return chunk.data; }
  void arrived(int64_t, const Item &, const Piece &) const {}

 private:
  const Exchange &exchange_;
};

// What arrives is reduced in place, with the own input, in the slot from which it is then sent on.
class Reducing {
 public:
  Reducing(Exchange &exchange, const Chunks &chunks, void *output)
      : exchange_(exchange),
        output_{output, 0},
        chunks_(chunks),
        slot_bytes_((chunks.length * exchange.element + 63) / 64 * 64),
        slots_(4 * kWindow * slot_bytes_) {}

  int piece_sent(int step) const { return exchange_.after(-step - 1); }
  int piece_received(int step) const { return exchange_.after(-step - 2); }
  void *target(int64_t t, const Piece &) const { return slot(t % (2 * kWindow)); }

  const void *source(int64_t t, const Item &item, const Piece &chunk) {
    if (item.step > 0) return slot((t - kWindow) % (2 * kWindow));
    if (exchange_.call.reduction != LK_PREMUL_SUM) return chunk.data;
    void *scaled = slot(2 * kWindow + t % (2 * kWindow));
    exchange_.take_input(scaled, chunk.data, chunk.count);
    return scaled;
  }

  void arrived(int64_t t, const Item &item, const Piece &chunk) {
    void *here = slot(t % (2 * kWindow));
    const void *sources[] = {here, chunk.data};
    const bool last = item.step == exchange_.size - 2;
    Piece whole{output_.data, (item.chunk + 1) * chunks_.length};
    void *target = last ? chunks_.of(whole, item.chunk).data : here;
    reduce(target, sources, exchange_.factors(2, 1), 2, chunk.count, exchange_.call.dtype, exchange_.call.reduction);
  }

 private:
  char *slot(int64_t number) const { return slots_.data() + number * slot_bytes_; }

  Exchange &exchange_;
  const Piece output_;
  const Chunks &chunks_;
  const int64_t slot_bytes_;
  const Scratch slots_;
};

}  // namespace

std::vector<Piece> split(void *data, int64_t count, int size, int64_t element) {
  std::vector<Piece> pieces;
  int64_t begin = 0;
  for (int i = 0; i < size; ++i) {
    int64_t length = count / size + (i < count % size);
    pieces.push_back({static_cast<char *>(data) + begin * element, length});
    begin += length;
  }
  return pieces;
}

void ring_all_gather(Exchange &exchange, const std::vector<Piece> &pieces) {
  Chunks chunks(exchange, pieces);
  Gathering work(exchange);
  run_ring(exchange, pieces, chunks, kPhase, work);
}

void ring_reduce_scatter(Exchange &exchange, const std::vector<Piece> &pieces, void *output) {
  const Piece &own = pieces[size_t(exchange.own)];
  if (exchange.size == 1) return exchange.take_input(output, own.data, own.count);
  Chunks chunks(exchange, pieces);
  Reducing work(exchange, chunks, output);
  run_ring(exchange, pieces, chunks, 0, work);
}

void ring_reduce(Exchange &exchange) {
  const lk_call &call = exchange.call;
  const bool at_root = exchange.own == exchange.root;
  auto inputs = split(const_cast<void *>(call.input), call.count, exchange.size, exchange.element);
  const int64_t count = inputs[size_t(exchange.own)].count;
  if (at_root) {
    auto outputs = split(call.output, call.count, exchange.size, exchange.element);
    ring_reduce_scatter(exchange, inputs, outputs[size_t(exchange.own)].data);
    exchange.finish_reduction(outputs[size_t(exchange.own)].data, count);
    std::deque<Request> received;
    for (int i = 1; i < exchange.size; ++i) {
      const Piece &piece = outputs[size_t(exchange.after(i))];
      exchange.receive(received.emplace_back(), exchange.after(i), kPhase, piece.data, piece.count, piece.count);
    }
    for (Request &request : received) exchange.wait(request);
  } else {
    Scratch own(count * exchange.element);
    ring_reduce_scatter(exchange, inputs, own.data());
    exchange.finish_reduction(own.data(), count);
    Request sent;
    exchange.send(sent, exchange.root, kPhase, own.data(), count, count);
    exchange.wait(sent);
  }
}

}  // namespace lowerkit::collective
