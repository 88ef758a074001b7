// Two single-producer single-consumer rings of bytes. The counters only grow; a byte lies at its number modulo the
// capacity.
#include <algorithm>
#include <cstring>

#include "byte_stream.h"
#include "failure.h"

namespace lowerkit::collective {
namespace {

class RingStream final : public ByteStream {
 public:
  RingStream(int peer, void *outgoing, void *incoming, size_t capacity, Doorbell *bell)
      : peer_(peer),
        outgoing_(*static_cast<Ring *>(outgoing)),
        incoming_(*static_cast<Ring *>(incoming)),
        capacity_(capacity),
        bell_(bell),
        written_(outgoing_.written.load()),
        read_(incoming_.read.load()) {}
  ~RingStream() override { close(); }

  size_t write(const iovec *parts, int count) override {
    if (incoming_.closed.load()) throw lost();
    size_t wanted = 0;
    for (int i = 0; i < count; ++i) wanted += parts[i].iov_len;
    size_t room = room_for_writing();
    if (room < wanted) {
      // Dekker: announce, then look again; the reader counts, then looks for the announcement.
      outgoing_.full.store(1);
      room = room_for_writing();
    }
    size_t moved = 0;
    for (int i = 0; i < count && room > moved; ++i) {
      size_t size = std::min(parts[i].iov_len, room - moved);
      copy_in(written_ + moved, static_cast<const char *>(parts[i].iov_base), size);
      moved += size;
    }
    if (moved == 0) return 0;
    written_ += moved;
    outgoing_.written.store(written_);
    bell_->ring();
    return moved;
  }

  size_t read(const iovec *parts, int count) override {
    // `closed` is read first: what was written before it was set is then seen.
    bool closed = incoming_.closed.load() != 0;
    uint64_t available = incoming_.written.load() - read_;
    if (available > capacity_)
      throw Failure(LK_PROTOCOL, "the ring from rank " + std::to_string(peer_) + " holds more bytes than it can",
                    peer_);
    size_t moved = 0;
    for (int i = 0; i < count && available > moved; ++i) {
      size_t size = std::min<size_t>(parts[i].iov_len, available - moved);
      copy_out(read_ + moved, static_cast<char *>(parts[i].iov_base), size);
      moved += size;
    }
    if (moved == 0) {
      if (closed && available == 0) throw lost();
      return 0;
    }
    read_ += moved;
    incoming_.read.store(read_);
    if (incoming_.full.load() && incoming_.full.exchange(0)) bell_->ring();
    return moved;
  }

  void close() override {
    outgoing_.closed.store(1);
    bell_->ring();
  }

 private:
  size_t room_for_writing() const {
    uint64_t used = written_ - outgoing_.read.load();
    if (used > capacity_)
      throw Failure(LK_PROTOCOL, "rank " + std::to_string(peer_) + " read more bytes from the ring than were written",
                    peer_);
    return size_t(capacity_ - used);
  }
  void copy_in(uint64_t at, const char *source, size_t size) {
    if (size == 0) return;  // the source may be null
    char *bytes = reinterpret_cast<char *>(&outgoing_ + 1);
    size_t first = std::min<size_t>(size, capacity_ - at % capacity_);
    std::memcpy(bytes + at % capacity_, source, first);
    std::memcpy(bytes, source + first, size - first);
  }
  void copy_out(uint64_t at, char *target, size_t size) const {
    if (size == 0) return;
    const char *bytes = reinterpret_cast<const char *>(&incoming_ + 1);
    size_t first = std::min<size_t>(size, capacity_ - at % capacity_);
    std::memcpy(target, bytes + at % capacity_, first);
    std::memcpy(target + first, bytes, size - first);
  }
  Failure lost() const {
    return Failure(LK_PEER_LOST, "the connection to rank " + std::to_string(peer_) + " ended: it was closed", peer_);
  }

  const int peer_;
  Ring &outgoing_;
  Ring &incoming_;
  const uint64_t capacity_;
  Doorbell *const bell_;
  uint64_t written_;
  uint64_t read_;
};

}  // namespace

std::unique_ptr<ByteStream> make_ring_stream(int peer, void *outgoing, void *incoming, size_t capacity,
                                             Doorbell *bell) {
  return std::make_unique<RingStream>(peer, outgoing, incoming, capacity, bell);
}

}  // namespace lowerkit::collective
