// The header that goes before every payload, and what makes one acceptable.
//
// Kinds of frames
//   eager    a whole message, up to kMostEagerBytes
//   request  announces a longer message: `bytes` is its length; no payload
//   grant    the receiver has a buffer for the oldest announced message of that key; no payload
//   data     the next part of a granted message, up to kMostDataBytes
//   waiting  the sender has waited long in a collective for rank `tag`, or no longer does, where that is itself; no
//            payload. It tells who waits for the sender whom to blame, and in what the sender is; nothing else needs it
//   abort    the sender's group failed: `tag` is the lk_status, `root` the rank to blame, the payload the reason
// A message is identified by (sender, scope, sequence, tag); messages of one identity stay in order.
#pragma once

#include <cstdint>

#include "operation.h"

namespace lowerkit::collective {

enum class FrameKind : uint8_t { eager = 1, request = 2, grant = 3, data = 4, waiting = 5, abort = 6 };
// message: sent by the user, sequence 0, the tag is his. operation: a step of a collective, the tag is its number.
// hosts: about a collective as the user called it: which rank leads the sender's host, asked on behalf of the first
// one; and that the sender waits in memory.
enum class Scope : uint8_t { message = 1, operation = 2, hosts = 3 };

constexpr uint32_t kFrameMagic = 0x4d4b4c01;  // on the wire: 01 'L' 'K' 'M'
constexpr uint16_t kFrameVersion = 1;
constexpr uint64_t kMostEagerBytes = 1 << 20;
constexpr uint64_t kMostDataBytes = 1 << 20;
constexpr uint64_t kMostAbortBytes = 1024;
constexpr uint64_t kMostMessageBytes = uint64_t(1) << 46;

// Little-endian on the wire, as in memory.
struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint16_t version = kFrameVersion;
  FrameKind kind = FrameKind::eager;
  Scope scope = Scope::message;
  int32_t source = 0;
  uint32_t counter = 0;  // of the frames of one link and direction; modulo 2^32
  int64_t tag = 0;
  uint64_t sequence = 0;
  uint64_t bytes = 0;  // of the payload; in a request, of the message
  uint64_t fingerprint = 0;
  uint8_t operation = 0;
  uint8_t dtype = 0;
  uint8_t reduction = 0;
  uint8_t dims = 0;
  int32_t root = 0;
  int64_t count = 0;
};
static_assert(sizeof(FrameHeader) == 64);
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "headers are copied as they lie in memory");

inline uint64_t payload_bytes(const FrameHeader &header) {
  bool has_payload =
      header.kind == FrameKind::eager || header.kind == FrameKind::data || header.kind == FrameKind::abort;
  return has_payload ? header.bytes : 0;
}

// Throws Failure(LK_PROTOCOL) that names the peer and the first field that is not what it may be. `size` is the number
// of ranks of the group, `counter` the number that the frame must bear.
void check_header(const FrameHeader &header, int peer, int size, uint32_t counter);

// What the header says of the sender's call. The shape is not in it: `dims` alone.
Descriptor described_by(const FrameHeader &header);

}  // namespace lowerkit::collective
