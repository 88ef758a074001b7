#include "messenger.h"

#include <errno.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "loopback_link.h"
#include "messenger_peer.h"

namespace lowerkit::collective {
namespace {

MessengerOptions bounded(MessengerOptions options) {
  options.eager_bytes = std::clamp<int64_t>(options.eager_bytes, 0, int64_t(kMostEagerBytes));
  options.data_bytes = std::clamp<int64_t>(options.data_bytes, 1, int64_t(kMostDataBytes));
  // One message must always find room.
  options.unexpected_bytes = std::max<int64_t>(options.unexpected_bytes, int64_t(kMostEagerBytes + sizeof(Arrival)));
  return options;
}

int cores_of_process() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

}  // namespace

Envelope Envelope::message(const Descriptor &descriptor, int64_t tag) {
  Descriptor compared = descriptor;
  compared.operation = LK_SEND;
  compared.root = 0;
  return {{Scope::message, 0, tag}, descriptor, collective::fingerprint(compared), descriptor.count};
}

Envelope Envelope::step(const Descriptor &descriptor, uint64_t fingerprint, uint64_t sequence, int64_t step,
                        int64_t count) {
  return {{Scope::operation, sequence, step}, descriptor, fingerprint, count};
}

Envelope Envelope::hosts(const Descriptor &descriptor, uint64_t fingerprint, uint64_t sequence) {
  return {{Scope::hosts, sequence, 0}, descriptor, fingerprint, descriptor.count};
}

Request::~Request() {
  // Once it is done no thread of the messenger's looks at it any more.
  if (messenger_ && !done()) messenger_->cancel(*this);
}

Messenger::Messenger(Membership &membership, std::vector<std::unique_ptr<Link>> links, MessengerOptions options)
    : membership_(membership),
      options_(bounded(options)),
      spin_nanoseconds_(!options.simulated && options.ranks_of_host <= cores_of_process() ? options.spin_nanoseconds
                                                                                          : 0),
      peers_(size_t(membership.size)) {
  for (size_t rank = 0; rank < peers_.size() && rank < links.size(); ++rank) peers_[rank].link = std::move(links[rank]);
  Peer &own = peers_[size_t(membership.rank)];
  if (!own.link) own.link = std::make_unique<LoopbackLink>(membership.rank);
  for (Peer &peer : peers_) {
    if (!peer.link || &peer == &own) continue;
    (peer.link->descriptor() >= 0 ? polls_ : listens_) = true;
  }
  // Also where nothing else is polled: a thread that drives must be woken somehow.
  if (!options_.simulated && (polls_ || !options_.doorbell)) {
    polls_ = true;
    const int descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (descriptor < 0) throw Failure(LK_RESOURCES, std::string("no event descriptor: ") + std::strerror(errno));
    wake_descriptor_.emplace(descriptor);
  }
}

Messenger::~Messenger() {
  // Requests may outlive the messenger where their operation failed: they must not look for it.
  for (Request *request : open_) request->messenger_ = nullptr;
}

void Messenger::open(Request &request, int peer, const Envelope &envelope, void *data, int64_t bytes) {
  if (peer >= membership_.size || peer < (request.receives_ ? LK_ANY_SOURCE : 0))
    throw Failure(LK_INVALID,
                  to_string(envelope.descriptor, envelope.key.sequence, membership_.name, membership_.rank) +
                      ": there is no rank " + std::to_string(peer) + " in a group of " +
                      std::to_string(membership_.size));
  request.messenger_ = this;
  request.done_.store(false, std::memory_order_relaxed);
  request.peer_ = peer;
  request.source_ = -1;
  request.envelope_ = envelope;
  request.data_ = static_cast<char *>(data);
  request.capacity_ = bytes;
  request.bytes_ = 0;
  request.arrival_ = nullptr;
  request.announcement_ = nullptr;
  request.failure_.reset();
  request.open_index_ = open_.size();
  open_.push_back(&request);
}

void Messenger::close(Request &request) {
  open_[request.open_index_] = open_.back();
  open_[request.open_index_]->open_index_ = request.open_index_;
  open_.pop_back();
  request.done_.store(true, std::memory_order_release);  // from here on it may be gone
  if (sleepers_) changed_.notify_all();
}

void Messenger::complete(Request &request) {
  request.arrival_ = nullptr;
  request.announcement_ = nullptr;
  close(request);
}

// Cuts the request from all that still knows it; what arrives for it later is thrown away.
void Messenger::forget(Request &request) {
  auto posted = std::find(posted_.begin(), posted_.end(), &request);
  if (posted != posted_.end()) posted_.erase(posted);
  if (request.arrival_) {
    request.arrival_->request = nullptr;
    request.arrival_->data = nullptr;
  }
  if (!request.receives_) {
    Peer &peer = peers_[size_t(request.peer_)];
    if (peer.link) peer.link->withdraw(&request);
    if (request.announcement_) {
      request.announcement_->request = nullptr;
      if (request.announcement_->granted)
        peer.announced.remove_if([&](const AnnouncedSend &item) { return &item == request.announcement_; });
    }
  }
  request.arrival_ = nullptr;
  request.announcement_ = nullptr;
}

void Messenger::fail(Request &request, lk_status status, const std::string &reason, int rank) {
  forget(request);
  ++failures_;
  request.failure_.emplace(status, describe_request(request) + ": " + reason, rank);
  close(request);
}

void Messenger::cancel(Request &request) {
  auto held = lock();
  if (!request.messenger_ || request.done()) return;
  forget(request);
  close(request);
}

bool Messenger::can_still_come(const Request &request) const {
  if (request.peer_ != LK_ANY_SOURCE) return peers_[size_t(request.peer_)].alive();
  if (membership_.size == 1) return true;
  for (int rank = 0; rank < membership_.size; ++rank)
    if (rank != membership_.rank && peers_[size_t(rank)].alive()) return true;
  return false;
}

// An error may be noticed in a later operation than the one that the rank did not come to.
std::string Messenger::last_seen(const Peer &peer, const Key &key) const {
  if (key.scope == Scope::message || peer.arrived_in >= key.sequence) return "";
  const std::string name = "; rank " + std::to_string(peer.link->peer);
  if (peer.arrived_in == 0) return name + " has sent nothing of any operation yet";
  return name + " was last seen in #" + std::to_string(peer.arrived_in);
}

void Messenger::fail_link(Peer &peer, const Failure &failure) {
  int rank = peer.link->peer;
  peer.failure = failure;
  if (failure.status() == LK_PEER_LOST) membership_.mark_dead(rank);
  peer.link->close();
  // A part of a message is none.
  peer.unexpected.remove_if(
      [](const Arrival &arrival) { return !arrival.complete && arrival.header.kind == FrameKind::eager; });
  std::vector<Request *> lost;
  for (Request *request : open_) {
    bool from_here = request->peer_ == rank;
    for (const Arrival &arrival : peer.accepted) from_here |= arrival.request == request;
    if (from_here || !can_still_come(*request)) lost.push_back(request);
  }
  for (Request *request : lost)
    fail(*request, failure.status(), failure.what() + last_seen(peer, request->envelope_.key), rank);
  peer.unexpected.remove_if([](const Arrival &arrival) { return arrival.header.kind == FrameKind::request; });
  peer.accepted.clear();
  peer.announced.clear();
}

FrameHeader Messenger::header_for(const Envelope &envelope, FrameKind kind) const {
  const Descriptor &descriptor = envelope.descriptor;
  bool message = envelope.key.scope == Scope::message;
  FrameHeader header;
  header.kind = kind;
  header.scope = envelope.key.scope;
  header.source = membership_.rank;
  header.tag = envelope.key.tag;
  header.sequence = envelope.key.sequence;
  header.fingerprint = envelope.fingerprint;
  header.operation = message ? uint8_t(LK_SEND) : descriptor.operation;
  header.dtype = descriptor.dtype;
  header.reduction = descriptor.reduction;
  header.dims = descriptor.dims;
  header.root = message ? 0 : descriptor.root;
  header.count = envelope.count;
  return header;
}

std::string Messenger::describe_request(const Request &request) const {
  const Key &key = request.envelope_.key;
  std::string text = to_string(request.envelope_.descriptor, key.sequence, membership_.name, membership_.rank);
  if (key.scope == Scope::message) text += ", tag " + std::to_string(key.tag);
  return text;
}

void Messenger::post_send(Request &request, int rank, const Envelope &envelope, const void *data, int64_t bytes) {
  auto held = lock();
  request.receives_ = false;
  open(request, rank, envelope, const_cast<void *>(data), bytes);
  Peer &peer = peers_[size_t(rank)];
  if (!peer.alive()) {
    if (peer.failure)
      fail(request, peer.failure->status(), peer.failure->what() + last_seen(peer, envelope.key), rank);
    else
      fail(request, LK_INVALID, "there is no connection to rank " + std::to_string(rank), rank);
    return;
  }
  if (!agrees_with_unexpected(request)) return;
  if (bytes <= options_.eager_bytes) {
    FrameHeader header = header_for(envelope, FrameKind::eager);
    header.bytes = uint64_t(bytes);
    peer.link->send(header, data, &request);
  } else {
    FrameHeader header = header_for(envelope, FrameKind::request);
    header.bytes = uint64_t(bytes);
    peer.announced.push_back({envelope.key, &request});
    request.announcement_ = &peer.announced.back();
    peer.link->send(header, nullptr, nullptr);
  }
  peer.link->flush(*this);
  if (driver_sleeps_) wake_driver();
}

void Messenger::post_receive(Request &request, int rank, const Envelope &envelope, void *data, int64_t bytes,
                             bool exact) {
  auto held = lock();
  request.receives_ = true;
  request.exact_ = exact;
  open(request, rank, envelope, data, bytes);
  if (!agrees_with_unexpected(request)) return;
  accept_unexpected(request);
  if (request.done() || request.arrival_) {
    if (driver_sleeps_) wake_driver();
    return;
  }
  if (can_still_come(request)) {
    posted_.push_back(&request);
    // A link that was refused for lack of room may have just this message.
    if (driver_sleeps_) wake_driver();
    return;
  }
  for (const Peer &peer : peers_)
    if (peer.failure && (rank == LK_ANY_SOURCE || &peer == &peers_[size_t(rank)]))
      return fail(request, peer.failure->status(), peer.failure->what() + last_seen(peer, envelope.key),
                  peer.failure->rank());
  fail(request, LK_INVALID, "there is no connection to rank " + std::to_string(rank), rank);
}

void Messenger::finish_operation(uint64_t sequence, const Descriptor &descriptor) {
  auto held = lock();
  // What came together with the last part that was waited for may tell that the group has failed.
  membership_.check();
  finished_ = std::max(finished_, sequence);
  finished_descriptor_ = descriptor;
  for (Peer &peer : peers_)
    for (const Arrival &arrival : peer.unexpected)
      if (arrival.header.scope == Scope::operation && arrival.header.sequence <= finished_)
        throw Failure(LK_DESYNC,
                      to_string(descriptor, sequence, membership_.name, membership_.rank) + " is over, but rank " +
                          std::to_string(peer.link->peer) + " sent a part of " +
                          to_string(described_by(arrival.header)) + " #" + std::to_string(arrival.header.sequence),
                      peer.link->peer);
}

void Messenger::send_abort(lk_status cause, const std::string &reason, int blamed, Deadline deadline) {
  std::string text = reason.substr(0, kMostAbortBytes);
  FrameHeader header;
  header.kind = FrameKind::abort;
  header.scope = Scope::operation;
  header.source = membership_.rank;
  header.tag = cause == LK_INTERRUPTED ? LK_ABORTED : cause;  // how this rank was stopped is no matter of the others
  header.bytes = text.size();
  header.fingerprint = 1;
  header.root = blamed;
  {
    auto held = lock();
    for (Peer &peer : peers_)
      if (peer.alive()) peer.link->send(header, text.data(), nullptr);
  }
  for (;;) {
    {
      auto held = lock();
      bool waiting = false;
      for (Peer &peer : peers_) {
        if (!peer.alive()) continue;
        peer.link->flush(*this);
        waiting |= peer.link->writing();
      }
      wake_driver();
      if (!waiting || deadline.passed(monotonic_nanoseconds())) return;
    }
    usleep(200);
  }
}

}  // namespace lowerkit::collective
