#include "local_stream.h"

namespace lowerkit::collective {
namespace {

constexpr int64_t kLookEvery = 5000000;

// The rings themselves cannot tell that a process was killed: when nothing comes, its connection is looked at.
class LocalStream final : public ByteStream {
 public:
  LocalStream(Board &board, int peer, std::unique_ptr<ByteStream> rings)
      : board_(board), peer_(peer), rings_(std::move(rings)) {}

  size_t write(const iovec *parts, int count) override { return rings_->write(parts, count); }

  size_t read(const iovec *parts, int count) override {
    const size_t bytes = rings_->read(parts, count);
    if (bytes) return bytes;
    const int64_t now = monotonic_nanoseconds();
    if (now - looked_ > kLookEvery) {
      looked_ = now;
      board_.look_after(peer_);
    }
    return 0;
  }

  void close() override { rings_->close(); }

 private:
  Board &board_;
  const int peer_;
  const std::unique_ptr<ByteStream> rings_;
  int64_t looked_ = 0;
};

}  // namespace

std::unique_ptr<ByteStream> make_local_stream(Board &board, int peer) {
  const Segment &segment = board.segment();
  const int own = board.index();
  const auto capacity = size_t(Segment::ring_bytes(segment.ranks())) - sizeof(Ring);
  return std::make_unique<LocalStream>(
      board, peer,
      make_ring_stream(board.local_ranks()[size_t(peer)], segment.ring(own, peer), segment.ring(peer, own), capacity,
                       &segment.block(peer).doorbell));
}

}  // namespace lowerkit::collective
