// Bytes to and from one peer, in order, without blocking: a socket, or two rings in shared memory.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "doorbell.h"

namespace lowerkit::collective {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Return how many bytes moved; 0: none can now. Throw Failure(LK_PEER_LOST, ..., peer) at the end of the stream.
  virtual size_t write(const iovec *parts, int count) = 0;
  virtual size_t read(const iovec *parts, int count) = 0;
  // Ends the stream for the peer too.
  virtual void close() = 0;
  virtual int descriptor() const { return -1; }
};

// Takes over a connected stream socket (TCP or Unix) and makes it non-blocking.
std::unique_ptr<ByteStream> make_tcp_stream(int peer, int descriptor);

// One direction of a ring stream: one writer, one reader. Lies in shared memory, zeroed, with its bytes behind it.
struct alignas(64) Ring {
  std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) std::atomic<uint32_t> full;  // the writer waits for room
  std::atomic<uint32_t> closed;
};
constexpr size_t ring_bytes(size_t capacity) { return sizeof(Ring) + capacity; }

// `incoming` and `outgoing` lie at multiples of 64 and hold ring_bytes(capacity) each. `bell` is the peer's.
std::unique_ptr<ByteStream> make_ring_stream(int peer, void *outgoing, void *incoming, size_t capacity, Doorbell *bell);

}  // namespace lowerkit::collective
