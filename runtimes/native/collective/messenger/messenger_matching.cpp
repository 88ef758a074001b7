// What arrives meets what was posted.
#include <algorithm>
#include <cstring>

#include "messenger_peer.h"

namespace lowerkit::collective {
namespace {

Failure protocol_failure(int peer, const std::string &what) {
  return Failure(LK_PROTOCOL, name_of(peer) + " sent bytes that are not of this protocol: " + what, peer);
}

// Whether these differ between ranks by more than lengths.
bool is_another_call(const Descriptor &one, const Descriptor &other) {
  return one.operation != other.operation || one.dtype != other.dtype || one.reduction != other.reduction ||
         one.root != other.root;
}

std::string call_of(const FrameHeader &header) {
  return to_string(described_by(header)) + " #" + std::to_string(header.sequence);
}

std::string lengths(const FrameHeader &header, int64_t count, int64_t capacity) {
  return "sent " + std::string(kDtypeNames[header.dtype]) + " x " + std::to_string(header.count) + " (" +
         std::to_string(header.bytes) + " bytes) where " + std::to_string(count) + " elements (" +
         std::to_string(capacity) + " bytes) are expected";
}

// What the peer did instead of what this rank's request is for; empty: it did that. `here`: the message would be the
// request's.
std::string difference(const Envelope &envelope, int64_t capacity, bool exact, const FrameHeader &header, bool here) {
  const Descriptor &own = envelope.descriptor;
  const Descriptor theirs = described_by(header);
  const bool same = header.fingerprint == envelope.fingerprint;
  if (header.scope == Scope::message) {
    std::string sent = std::string("sent ") + kDtypeNames[header.dtype] + " x " + std::to_string(header.count);
    std::string tagged = " with tag " + std::to_string(header.tag);
    if (header.dtype != own.dtype) return sent + tagged;
    if (header.dims && own.dims && !same) return sent + " of another shape" + tagged;
    bool fits = exact ? int64_t(header.bytes) == capacity : int64_t(header.bytes) <= capacity;
    return fits ? "" : lengths(header, envelope.count, capacity);
  }
  // Ranks may have other counts where they have parts; a message of such an operation is of a part that both know.
  const bool counted = header.scope == Scope::hosts || header.count == envelope.count;
  if (!same) {
    std::string call = "calls " + call_of(header);
    if (is_another_call(theirs, own)) return call;
    if (!has_parts(header.operation)) return header.count == own.count ? "calls it with another shape" : call;
    if (!here || counted) return "calls it with other parts";
  }
  if (!here || (counted && int64_t(header.bytes) == capacity)) return "";
  return lengths(header, envelope.count, capacity);
}

}  // namespace

// Fails the request where the message is not what it waits for.
bool Messenger::agrees(Request &request, int peer, const FrameHeader &header) {
  const bool here = request.receives_ && request.envelope_.key == key_of(header);
  std::string reason = difference(request.envelope_, request.capacity_, request.exact_, header, here);
  if (reason.empty()) return true;
  fail(request, LK_DESYNC, name_of(peer) + " " + reason, peer);
  return false;
}

Request *Messenger::posted_for(int peer, const FrameHeader &header) {
  for (Request *request : posted_)
    if ((request->peer_ == peer || request->peer_ == LK_ANY_SOURCE) && request->envelope_.key == key_of(header))
      return request;
  return nullptr;
}

bool Messenger::is_of_finished_operation(int peer, const FrameHeader &header) {
  if (header.scope != Scope::operation || header.sequence > finished_) return false;
  membership_.abort(LK_DESYNC,
                    to_string(finished_descriptor_, finished_, membership_.name, membership_.rank) + " is over, but " +
                        name_of(peer) + " sent a part of " + call_of(header),
                    peer);
  return true;
}

// A rank may well wait in an operation that is over here, but not in another one of that number.
void Messenger::compare_with_finished(int peer, const FrameHeader &header) {
  if (header.scope != Scope::operation || header.sequence != finished_ ||
      !is_another_call(described_by(header), finished_descriptor_))
    return;
  membership_.abort(LK_DESYNC,
                    to_string(finished_descriptor_, finished_, membership_.name, membership_.rank) + " is over, but " +
                        name_of(peer) + " waits in " + call_of(header),
                    peer);
}

// Some operations go through memory and some do not: ranks of one host that differ may wait for each other at two
// places, and would do so until the deadline.
void Messenger::compare_with_begun(int peer, const FrameHeader &header) {
  if (header.scope != Scope::hosts || header.tag == header.source) return;
  const std::optional<Envelope> &begun = begun_[header.sequence % kBegun];
  if (!begun || begun->key.sequence != header.sequence || begun->fingerprint == header.fingerprint) return;
  membership_.abort(LK_DESYNC,
                    to_string(begun->descriptor, header.sequence, membership_.name, membership_.rank) +
                        ": the ranks called different operations: " + name_of(peer) + " " +
                        difference(*begun, 0, false, header, false),
                    peer);
}

void Messenger::begin_collective(const Envelope &envelope) {
  auto held = lock();
  begun_[envelope.key.sequence % kBegun] = envelope;
  for (Peer &peer : peers_)
    if (peer.waits_in == envelope.key.sequence) compare_with_begun(peer.link->peer, peer.waiting);
  membership_.check();
}

// A rank that is in another operation of the same number may never send what is waited for: what it sends instead
// tells.
void Messenger::compare_with_open_requests(int peer, const FrameHeader &header) {
  if (header.scope != Scope::operation) return;
  std::vector<Request *> different;
  for (Request *request : open_)
    if (request->envelope_.key.scope == Scope::operation && request->envelope_.key.sequence == header.sequence &&
        request->envelope_.fingerprint != header.fingerprint)
      different.push_back(request);
  for (Request *request : different) agrees(*request, peer, header);
}

bool Messenger::agrees_with_unexpected(Request &request) {
  if (request.envelope_.key.scope != Scope::operation) return true;
  for (Peer &peer : peers_)
    for (const Arrival &arrival : peer.unexpected)
      if (arrival.header.scope == Scope::operation && arrival.header.sequence == request.envelope_.key.sequence &&
          arrival.header.fingerprint != request.envelope_.fingerprint)
        return agrees(request, peer.link->peer, arrival.header);
  return true;
}

bool Messenger::frame_begins(int rank, const FrameHeader &header, Landing *&landing) {
  Peer &peer = peers_[size_t(rank)];
  if (header.scope != Scope::message && header.kind != FrameKind::abort)
    peer.arrived_in = std::max(peer.arrived_in, header.sequence);
  switch (header.kind) {
    case FrameKind::eager:
    case FrameKind::request:
      return message_begins(peer, header, landing);
    case FrameKind::data:
      data_begins(peer, header, landing);
      return true;
    case FrameKind::grant:
      grant_arrives(peer, header);
      return true;
    case FrameKind::waiting:
      peer.waits_for = int(header.tag);
      peer.waits_in = peer.waits_for == rank ? 0 : header.sequence;
      peer.waiting = header;
      compare_with_open_requests(rank, header);
      compare_with_finished(rank, header);
      compare_with_begun(rank, header);
      return true;
    case FrameKind::abort:
      peer.abort.buffer = std::make_unique<char[]>(kMostAbortBytes);
      peer.abort.data = peer.abort.buffer.get();
      landing = &peer.abort;
      return true;
  }
  return true;
}

bool Messenger::message_begins(Peer &peer, const FrameHeader &header, Landing *&landing) {
  int rank = peer.link->peer;
  // Nothing can use it: the payload has no landing.
  if (is_of_finished_operation(rank, header)) return true;
  Request *request = posted_for(rank, header);
  bool agreed = !request || agrees(*request, rank, header);
  compare_with_open_requests(rank, header);
  if (!agreed) return true;
  if (!request) {
    if (peer.unexpected_bytes + cost_of(header) > options_.unexpected_bytes) return false;
    peer.unexpected_bytes += cost_of(header);
  }
  std::list<Arrival> &list = request ? peer.accepted : peer.unexpected;
  Arrival &arrival = list.emplace_back();
  arrival.header = header;
  arrival.order = ++arrivals_;
  arrival.request = request;
  if (request) {
    posted_.erase(std::find(posted_.begin(), posted_.end(), request));
    request->arrival_ = &arrival;
  }
  if (header.kind == FrameKind::request) {
    if (request) peer.link->send(header_for(request->envelope_, FrameKind::grant), nullptr, nullptr);
    return true;
  }
  if (!request) arrival.buffer.reset(new char[header.bytes ? header.bytes : 1]);
  arrival.data = request ? request->data_ : arrival.buffer.get();
  landing = &arrival;
  return true;
}

void Messenger::data_begins(Peer &peer, const FrameHeader &header, Landing *&landing) {
  for (Arrival &arrival : peer.accepted) {
    if (arrival.header.kind != FrameKind::request || !(key_of(arrival.header) == key_of(header))) continue;
    if (header.bytes > arrival.header.bytes - arrival.received)
      throw protocol_failure(peer.link->peer,
                             "a message of " + std::to_string(arrival.header.bytes) + " bytes is longer");
    arrival.data = arrival.request ? arrival.request->data_ + arrival.received : nullptr;
    landing = &arrival;
    return;
  }
  throw protocol_failure(peer.link->peer, "a part of a message that was not asked for");
}

void Messenger::grant_arrives(Peer &peer, const FrameHeader &header) {
  for (auto item = peer.announced.begin(); item != peer.announced.end(); ++item) {
    if (item->granted || !(item->key == key_of(header))) continue;
    item->granted = true;
    if (item->request)
      send_part(peer, *item);
    else
      peer.announced.erase(item);
    return;
  }
  throw protocol_failure(peer.link->peer, "a message was asked for that was not announced");
}

void Messenger::send_part(Peer &peer, AnnouncedSend &announcement) {
  Request &request = *announcement.request;
  FrameHeader header = header_for(request.envelope_, FrameKind::data);
  header.bytes = std::min<uint64_t>(uint64_t(request.capacity_) - announcement.sent, uint64_t(options_.data_bytes));
  announcement.under_way = header.bytes;
  peer.link->send(header, request.data_ + announcement.sent, &request);
}

void Messenger::frame_sent(int rank, void *owner) {
  Request &request = *static_cast<Request *>(owner);
  AnnouncedSend *announcement = request.announcement_;
  if (!announcement) return complete(request);
  Peer &peer = peers_[size_t(rank)];
  announcement->sent += announcement->under_way;
  if (announcement->sent < uint64_t(request.capacity_)) return send_part(peer, *announcement);
  peer.announced.remove_if([&](const AnnouncedSend &item) { return &item == announcement; });
  complete(request);
}

void Messenger::frame_ends(int rank, const FrameHeader &header, Landing *landing) {
  if (!landing) return;
  Peer &peer = peers_[size_t(rank)];
  Arrival &arrival = static_cast<Arrival &>(*landing);
  if (header.kind == FrameKind::abort)
    return abort_arrives(header, std::string(arrival.buffer.get(), size_t(header.bytes)));
  arrival.received += header.bytes;
  arrival.complete = arrival.received == arrival.header.bytes;
  bool accepted = false;
  for (const Arrival &item : peer.accepted) accepted |= &item == &arrival;
  if (accepted && arrival.complete) deliver(peer, arrival);
}

void Messenger::abort_arrives(const FrameHeader &header, const std::string &text) {
  membership_.abort(lk_status(header.tag), text, header.root);
}

void Messenger::deliver(Peer &peer, Arrival &arrival) {
  if (Request *request = arrival.request) {
    if (arrival.buffer && arrival.header.bytes) std::memcpy(request->data_, arrival.buffer.get(), arrival.header.bytes);
    request->source_ = peer.link->peer;
    request->bytes_ = int64_t(arrival.header.bytes);
    complete(*request);
  }
  peer.accepted.remove_if([&](const Arrival &item) { return &item == &arrival; });
}

void Messenger::accept_unexpected(Request &request) {
  Peer *from = nullptr;
  std::list<Arrival>::iterator found;
  for (Peer &peer : peers_) {
    if (request.peer_ != LK_ANY_SOURCE && &peer != &peers_[size_t(request.peer_)]) continue;
    auto first = std::find_if(peer.unexpected.begin(), peer.unexpected.end(),
                              [&](const Arrival &arrival) { return key_of(arrival.header) == request.envelope_.key; });
    if (first == peer.unexpected.end() || (from && found->order < first->order)) continue;
    from = &peer;
    found = first;
  }
  if (!from) return;
  int rank = from->link->peer;
  // The message stays where it does not agree: the next receive may be the one for it.
  if (!agrees(request, rank, found->header)) return;
  from->unexpected_bytes -= cost_of(found->header);
  from->accepted.splice(from->accepted.end(), from->unexpected, found);
  found->request = &request;
  request.arrival_ = &*found;
  if (found->complete) return deliver(*from, *found);
  if (found->header.kind != FrameKind::request) return;
  from->link->send(header_for(request.envelope_, FrameKind::grant), nullptr, nullptr);
  from->link->flush(*this);
}

}  // namespace lowerkit::collective
