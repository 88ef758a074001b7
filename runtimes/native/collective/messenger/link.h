// A link carries frames to and from one peer, in order, without blocking.
#pragma once

#include <cstdint>

#include "frame.h"

namespace lowerkit::collective {

// Where the payload of an arriving frame goes; null: it is read and thrown away. May change while the payload arrives.
struct Landing {
  char *data = nullptr;
};

// Who takes what a link delivers. Functions may throw Failure: it comes out of Link::progress().
class FrameSink {
 public:
  // The header was checked. False: there is no room; the link keeps the frame, reads no further and asks again later.
  // A frame with a payload needs a landing that lives until the frame ends (or the link is closed).
  virtual bool frame_begins(int peer, const FrameHeader &header, Landing *&landing) = 0;
  virtual void frame_ends(int peer, const FrameHeader &header, Landing *landing) = 0;
  // The last byte of a frame sent with this owner was handed on: its payload is the owner's again.
  virtual void frame_sent(int peer, void *owner) = 0;

 protected:
  ~FrameSink() = default;
};

class Link {
 public:
  explicit Link(int rank) : peer(rank) {}
  virtual ~Link() = default;
  Link(const Link &) = delete;
  Link &operator=(const Link &) = delete;

  const int peer;

  // Appends a frame; the link numbers it. The payload stays the owner's until frame_sent(owner); with no owner it is
  // copied.
  virtual void send(const FrameHeader &header, const void *payload, void *owner) = 0;
  // Forgets the owner: a frame that has not begun is removed (true), the rest of one that has is copied (false).
  virtual bool withdraw(void *owner) = 0;
  // Writes what can be written. True: something moved. Never throws: what broke comes out of progress().
  virtual bool flush(FrameSink &sink) = 0;
  // Reads and writes what can be. True: something moved. Throws Failure when the link is over: LK_PEER_LOST,
  // LK_PROTOCOL.
  virtual bool progress(FrameSink &sink) = 0;
  // Ends the link for the peer too.
  virtual void close() = 0;

  // To poll; -1: nothing to poll (its sender rings a doorbell).
  virtual int descriptor() const { return -1; }
  virtual bool reading() const { return true; }   // false: a frame waits for room
  virtual bool writing() const { return false; }  // true: frames wait to be written
  // When to look again without being called, on the monotonic clock.
  virtual int64_t next_event() const { return INT64_MAX; }
};

}  // namespace lowerkit::collective
