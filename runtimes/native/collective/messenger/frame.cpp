#include "frame.h"

namespace lowerkit::collective {
namespace {

[[noreturn]] void refuse(int peer, const char *field, const std::string &found, const std::string &wanted) {
  throw Failure(LK_PROTOCOL,
                "rank " + std::to_string(peer) + " sent bytes that are not of this protocol: the frame's " + field +
                    " is " + found + ", not " + wanted,
                peer);
}

void check_range(int peer, const char *field, uint64_t value, uint64_t least, uint64_t most) {
  if (value < least || value > most)
    refuse(peer, field, std::to_string(value), std::to_string(least) + " to " + std::to_string(most));
}

void check_length(const FrameHeader &header, int peer, int size) {
  switch (header.kind) {
    case FrameKind::eager:
      return check_range(peer, "length", header.bytes, 0, kMostEagerBytes);
    case FrameKind::request:
      return check_range(peer, "length", header.bytes, 1, kMostMessageBytes);
    case FrameKind::grant:
      return check_range(peer, "length", header.bytes, 0, 0);
    case FrameKind::data:
      return check_range(peer, "length", header.bytes, 1, kMostDataBytes);
    case FrameKind::waiting:
      check_range(peer, "scope", uint64_t(header.scope), uint64_t(Scope::operation), uint64_t(Scope::hosts));
      check_range(peer, "awaited rank", uint64_t(header.tag), 0, uint64_t(size - 1));
      return check_range(peer, "length", header.bytes, 0, 0);
    case FrameKind::abort:
      check_range(peer, "status", uint64_t(header.tag), LK_INVALID, LK_PROTOCOL);
      return check_range(peer, "length", header.bytes, 0, kMostAbortBytes);
  }
}

void check_call(const FrameHeader &header, int peer, int size) {
  if (header.kind != FrameKind::abort && header.scope == Scope::message) {
    check_range(peer, "sequence", header.sequence, 0, 0);
    check_range(peer, "operation", header.operation, LK_SEND, LK_SEND);
  } else {
    if (header.kind != FrameKind::abort) check_range(peer, "sequence", header.sequence, 1, UINT64_MAX);
    check_range(peer, "operation", header.operation, LK_BARRIER, LK_ALL_TO_ALL);
  }
  check_range(peer, "element type", header.dtype, 0, kDtypes - 1);
  check_range(peer, "reduction", header.reduction, 0, kReductions - 1);
  check_range(peer, "number of dimensions", header.dims, 0, LK_MAX_DIMS);
  if (header.root < -1 || header.root >= size)
    refuse(peer, "root", std::to_string(header.root), "-1 to " + std::to_string(size - 1));
  if (header.count < 0) refuse(peer, "count", std::to_string(header.count), "0 or more");
  if (header.fingerprint == 0) refuse(peer, "fingerprint", "0", "another number");
}

}  // namespace

void check_header(const FrameHeader &header, int peer, int size, uint32_t counter) {
  check_range(peer, "magic number", header.magic, kFrameMagic, kFrameMagic);
  check_range(peer, "version", header.version, kFrameVersion, kFrameVersion);
  check_range(peer, "kind", uint64_t(header.kind), uint64_t(FrameKind::eager), uint64_t(FrameKind::abort));
  check_range(peer, "scope", uint64_t(header.scope), uint64_t(Scope::message), uint64_t(Scope::hosts));
  if (header.source != peer) refuse(peer, "source", std::to_string(header.source), std::to_string(peer));
  check_range(peer, "number", header.counter, counter, counter);
  check_length(header, peer, size);
  check_call(header, peer, size);
}

Descriptor described_by(const FrameHeader &header) {
  Descriptor descriptor;
  descriptor.operation = header.operation;
  descriptor.dtype = header.dtype;
  descriptor.reduction = header.reduction;
  descriptor.root = header.root;
  descriptor.count = header.count;
  return descriptor;
}

}  // namespace lowerkit::collective
