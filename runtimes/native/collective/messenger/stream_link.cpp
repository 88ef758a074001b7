#include "stream_link.h"

#include <algorithm>
#include <cstring>

namespace lowerkit::collective {

StreamLink::StreamLink(int own, int rank, int size, std::unique_ptr<ByteStream> stream)
    : Link(rank), own_(own), size_(size), stream_(std::move(stream)), staging_(kStagingBytes) {}

void StreamLink::send(const FrameHeader &header, const void *payload, void *owner) {
  Outgoing frame{header, static_cast<const char *>(payload), payload_bytes(header), owner, {}};
  frame.header.source = own_;
  if (!owner && frame.payload_bytes) {
    frame.copy.assign(frame.payload, frame.payload + frame.payload_bytes);
    frame.payload = frame.copy.data();
  }
  queue_.push_back(std::move(frame));
}

bool StreamLink::withdraw(void *owner) {
  bool removed = true;
  for (size_t i = 0; i < queue_.size();) {
    Outgoing &frame = queue_[i];
    if (frame.owner != owner) {
      ++i;
    } else if (i > 0 || begun_ == 0) {
      queue_.erase(queue_.begin() + long(i));
    } else {
      removed = false;
      frame.owner = nullptr;
      frame.copy.assign(frame.payload, frame.payload + frame.payload_bytes);
      frame.payload = frame.copy.data();
      ++i;
    }
  }
  return removed;
}

bool StreamLink::flush(FrameSink &sink) {
  bool moved = false;
  while (writing()) {
    iovec parts[2 * kFrames];
    int count = 0;
    uint64_t skip = begun_;
    size_t frames = std::min(queue_.size(), kFrames);
    for (size_t i = 0; i < frames; ++i) {
      Outgoing &frame = queue_[i];
      frame.header.counter = frames_written_ + uint32_t(i);
      uint64_t of_header = std::min<uint64_t>(skip, sizeof(FrameHeader));
      uint64_t of_payload = skip - of_header;
      skip = 0;
      if (of_header < sizeof(FrameHeader))
        parts[count++] = {reinterpret_cast<char *>(&frame.header) + of_header, sizeof(FrameHeader) - of_header};
      if (of_payload < frame.payload_bytes)
        parts[count++] = {const_cast<char *>(frame.payload) + of_payload, frame.payload_bytes - of_payload};
    }
    size_t written = 0;
    try {
      written = stream_->write(parts, count);
    } catch (const Failure &failure) {
      // What the peer sent before it went is still to be read: progress() throws this when nothing is left.
      write_failure_ = failure;
    }
    if (written == 0) break;
    moved = true;
    finish_written(sink, written);
  }
  return moved;
}

void StreamLink::finish_written(FrameSink &sink, size_t bytes) {
  begun_ += bytes;
  while (!queue_.empty() && begun_ >= sizeof(FrameHeader) + queue_.front().payload_bytes) {
    begun_ -= sizeof(FrameHeader) + queue_.front().payload_bytes;
    void *owner = queue_.front().owner;
    queue_.pop_front();
    ++frames_written_;
    if (owner) sink.frame_sent(peer, owner);  // may append to the queue
  }
}

bool StreamLink::progress(FrameSink &sink) {
  bool moved = receive(sink);
  moved |= flush(sink);
  if (!moved && write_failure_ && reading()) throw *write_failure_;
  return moved;
}

bool StreamLink::receive(FrameSink &sink) {
  bool moved = consume(sink);
  for (int i = 0; i < kReads && state_ != State::refused; ++i) {
    size_t asked = 0;
    size_t got = fill(asked);
    if (got == 0) break;
    moved = true;
    consume(sink);
    if (got < asked) break;
  }
  return moved;
}

// Takes apart what is staged. True: a frame began or ended.
bool StreamLink::consume(FrameSink &sink) {
  bool moved = false;
  for (;;) {
    if (state_ == State::header) {
      if (staged_end_ - staged_begin_ < sizeof(FrameHeader)) return moved;
      std::memcpy(&header_, staging_.data() + staged_begin_, sizeof(FrameHeader));
      check_header(header_, peer, size_, frames_read_);
      staged_begin_ += sizeof(FrameHeader);
      ++frames_read_;
      state_ = State::refused;
    }
    if (state_ == State::refused) {
      landing_ = nullptr;
      if (!sink.frame_begins(peer, header_, landing_)) return moved;
      state_ = State::payload;
      landed_ = 0;
      moved = true;
    }
    uint64_t whole = payload_bytes(header_);
    size_t size = std::min<uint64_t>(staged_end_ - staged_begin_, whole - landed_);
    if (size && landing_ && landing_->data)
      std::memcpy(landing_->data + landed_, staging_.data() + staged_begin_, size);
    staged_begin_ += size;
    landed_ += size;
    if (landed_ < whole) return moved;
    state_ = State::header;
    moved = true;
    sink.frame_ends(peer, header_, landing_);
  }
}

// Reads the rest of the payload, and behind it what else has come. Nothing but part of a header is staged before.
size_t StreamLink::fill(size_t &asked) {
  size_t left = staged_end_ - staged_begin_;
  if (left && staged_begin_) std::memmove(staging_.data(), staging_.data() + staged_begin_, left);
  staged_begin_ = 0;
  staged_end_ = left;
  iovec parts[2];
  int count = 0;
  size_t wanted = 0;
  if (state_ == State::payload) {
    wanted = payload_bytes(header_) - landed_;
    if (landing_ && landing_->data) {
      parts[count++] = {landing_->data + landed_, wanted};
    } else {
      discarded_.resize(kStagingBytes);
      wanted = std::min(wanted, discarded_.size());
      parts[count++] = {discarded_.data(), wanted};
    }
  }
  // Behind a part of a payload that is thrown away there is more of it: nothing may be staged.
  if (state_ != State::payload || landed_ + wanted == payload_bytes(header_))
    parts[count++] = {staging_.data() + left, staging_.size() - left};
  for (int i = 0; i < count; ++i) asked += parts[i].iov_len;
  size_t got = stream_->read(parts, count);
  size_t of_payload = std::min(got, wanted);
  landed_ += of_payload;
  staged_end_ += got - of_payload;
  return got;
}

}  // namespace lowerkit::collective
