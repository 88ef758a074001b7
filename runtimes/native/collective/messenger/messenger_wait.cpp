// How threads wait: one drives the links, spinning first and then asleep in the kernel; the others sleep until it tells
// them.
#include <poll.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "interruption.h"
#include "messenger_peer.h"

namespace lowerkit::collective {
namespace {

// Longest sleeps. Only a membership that another part of the process changed goes unnoticed for so long.
constexpr int64_t kLongestSleep = 20000000;
// Where both sockets and memory are listened to: the memory's doorbell does not end a poll.
constexpr int64_t kLongestMixedSleep = 100000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  sched_yield();
#endif
}

std::string seconds(int64_t nanoseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", double(nanoseconds) / 1e9);
  return text;
}

}  // namespace

struct Messenger::Patience {
  const Deadline &deadline;
  int64_t spin_until;
  int64_t tell_at;
  bool gives_way = false;
};

// A thread that polls in a loop would hardly ever leave the mutex to another: it looks at who wants it.
std::unique_lock<std::mutex> Messenger::lock() {
  wanting_.fetch_add(1);
  std::unique_lock<std::mutex> held(mutex_);
  wanting_.fetch_sub(1);
  return held;
}

int64_t Messenger::now() const { return options_.simulated ? options_.simulated->now() : monotonic_nanoseconds(); }

bool Messenger::progress_links() {
  bool moved = false;
  for (Peer &peer : peers_) {
    if (!peer.alive()) continue;
    bool here = false;
    try {
      // Read before its bytes are: what the rank sent before it died is then seen.
      bool dead = membership_.dead(peer.link->peer) && peer.link->peer != membership_.rank;
      here = peer.link->progress(*this);
      if (dead && !here && peer.link->reading())
        throw Failure(LK_PEER_LOST, "rank " + std::to_string(peer.link->peer) + " died", peer.link->peer);
    } catch (const Failure &failure) {
      fail_link(peer, failure);
      here = true;
    } catch (const std::bad_alloc &) {
      fail_link(peer, Failure(LK_RESOURCES, "no memory for a message of rank " + std::to_string(peer.link->peer)));
      here = true;
    }
    moved |= here;
  }
  return moved;
}

bool Messenger::progress() {
  auto held = lock();
  bool moved = progress_links();
  if (moved && driver_sleeps_) wake_driver();
  return moved;
}

bool Messenger::test(Request &request) {
  if (!request.done()) {
    membership_.check();
    progress();
  }
  if (!request.done()) return false;
  if (request.failure_) throw *request.failure_;
  return true;
}

void Messenger::wait(Request &request, Deadline deadline, Waiting *waiting) {
  Request *only = &request;
  wait(&only, 1, deadline, waiting);
}

void Messenger::wait(Request *const *requests, size_t count, Deadline deadline, Waiting *waiting) {
  auto throw_failures = [&] {
    for (size_t i = 0; i < count; ++i)
      if (requests[i]->done() && requests[i]->failure_) throw *requests[i]->failure_;
  };
  auto held = lock();
  struct Waiter {
    int &waiters;
    ~Waiter() { --waiters; }
  } waiter{waiters_};
  ++waiters_;
  for (size_t i = 0; i < count; ++i) {
    const Request &awaited = *requests[i];
    if (awaited.done()) continue;
    const int64_t start = now();
    Patience patience{deadline, start + spin_nanoseconds_, start + deadline.until_told()};
    while (!awaited.done()) {
      drive(held, awaited, patience);
      throw_failures();
    }
    if (patience.tell_at == INT64_MAX) send_waiting(awaited.envelope_, membership_.rank);
    if (waiting) waiting->add(now() - start, awaited.source_ >= 0 ? awaited.source_ : awaited.peer_);
  }
  throw_failures();
}

void Messenger::drive_unless_awaited(Request &request, Deadline deadline) {
  auto held = lock();
  // It does not spin: nobody waits for what it is about.
  Patience patience{deadline, 0, INT64_MAX, true};
  while (!request.done() && !waiters_ && !driven_) drive(held, request, patience);
}

// Returns when the request is done, when another failed, or when another thread drove for a while.
void Messenger::drive(std::unique_lock<std::mutex> &held, const Request &awaited, Patience &patience) {
  if (driven_) {
    if (gives_way_ && driver_sleeps_) wake_driver();
    ++sleepers_;
    changed_.wait_for(held, std::chrono::nanoseconds(kLongestSleep));
    --sleepers_;
    look_for_interruption(held, awaited);
    if (awaited.done()) return;
    membership_.check();
    if (patience.deadline.passed(now())) throw_timeout(awaited, patience.deadline);
    return;
  }
  struct Driving {
    Messenger &messenger;
    ~Driving() {
      messenger.driven_ = messenger.gives_way_ = false;
      if (messenger.sleepers_) messenger.changed_.notify_all();
    }
  } driving{*this};
  driven_ = true;
  gives_way_ = patience.gives_way;
  const uint64_t failures = failures_;
  while (!awaited.done() && failures_ == failures && !(gives_way_ && waiters_)) {
    uint32_t heard = options_.doorbell ? options_.doorbell->heard() : 0;
    bool moved = progress_links();
    if (awaited.done()) return;
    membership_.check();
    const int64_t moment = now();
    if (patience.deadline.passed(moment)) throw_timeout(awaited, patience.deadline);
    if (moment >= patience.tell_at) {
      patience.tell_at = INT64_MAX;
      send_waiting(awaited.envelope_, awaited.peer_);
    }
    if (moved && !gives_way_) patience.spin_until = moment + spin_nanoseconds_;
    if (wanting_.load(std::memory_order_relaxed)) {
      held.unlock();
      while (wanting_.load()) sched_yield();
      held.lock();
    } else if (moved) {
      continue;
    } else if (moment < patience.spin_until) {
      pause_briefly();
    } else if (options_.simulated) {
      sleep_in_simulation(held, std::min(patience.deadline.at, patience.tell_at));
    } else {
      sleep(held, heard, patience.deadline.at);
      look_for_interruption(held, awaited);
    }
  }
}

// Without the mutex: what a signal's handler does may need it.
void Messenger::look_for_interruption(std::unique_lock<std::mutex> &held, const Request &awaited) {
  if (options_.simulated) return;
  held.unlock();
  const bool ends = interrupted();
  held.lock();
  if (ends && !awaited.done())
    throw Failure(LK_INTERRUPTED, describe_request(awaited) + ": the wait was interrupted", membership_.rank);
}

void Messenger::tell_of_waiting(const Envelope &envelope, int rank) {
  auto held = lock();
  send_waiting(envelope, rank);
}

void Messenger::send_waiting(const Envelope &envelope, int rank) {
  if (envelope.key.scope == Scope::message) return;
  FrameHeader header = header_for(envelope, FrameKind::waiting);
  header.tag = rank;
  for (Peer &peer : peers_) {
    if (!peer.alive() || peer.link->peer == membership_.rank) continue;
    peer.link->send(header, nullptr, nullptr);
    peer.link->flush(*this);
  }
}

void Messenger::sleep(std::unique_lock<std::mutex> &held, uint32_t heard, int64_t until) {
  std::vector<pollfd> descriptors;
  int64_t now = monotonic_nanoseconds();
  int64_t longest = polls_ && listens_ ? kLongestMixedSleep : kLongestSleep;
  until = std::min(until, now + longest);
  for (const Peer &peer : peers_) {
    if (!peer.alive()) continue;
    until = std::min(until, peer.link->next_event());
    if (peer.link->descriptor() < 0) continue;
    int events = (peer.link->reading() ? POLLIN : 0) | (peer.link->writing() ? POLLOUT : 0);
    // A descriptor of no interest would still report that it was hung up, at once and again.
    if (events) descriptors.push_back({peer.link->descriptor(), short(events), 0});
  }
  if (until <= now) return;
  driver_sleeps_ = true;
  held.unlock();
  if (polls_) {
    descriptors.push_back({wake_descriptor_->get(), POLLIN, 0});
    timespec limit{time_t((until - now) / 1000000000), long((until - now) % 1000000000)};
    ppoll(descriptors.data(), descriptors.size(), &limit, nullptr);
    uint64_t count;
    if (descriptors.back().revents && ::read(wake_descriptor_->get(), &count, sizeof count) < 0) {
      // Another thread's wake-up was read already: there is nothing to do about it.
    }
  } else {
    options_.doorbell->sleep(heard, until - now);
  }
  held.lock();
  driver_sleeps_ = false;
}

// Of several threads of a rank each drives in its turn: nobody waits for the one that sleeps here.
void Messenger::sleep_in_simulation(std::unique_lock<std::mutex> &held, int64_t until) {
  for (const Peer &peer : peers_)
    if (peer.alive()) until = std::min(until, peer.link->next_event());
  driven_ = false;
  driver_sleeps_ = true;
  held.unlock();
  options_.simulated->sleep(options_.simulated_rank, until);
  held.lock();
  driven_ = true;
}

void Messenger::wake_driver() {
  if (options_.simulated) {
    options_.simulated->wake(options_.simulated_rank);
  } else if (polls_) {
    uint64_t one = 1;
    // Fails only where the counter is full: then it wakes already.
    if (::write(wake_descriptor_->get(), &one, sizeof one) < 0) return;
  } else {
    options_.doorbell->ring();
  }
}

void Messenger::wake() {
  auto held = lock();
  if (driver_sleeps_) wake_driver();
  changed_.notify_all();
}

// Along the line of those who wait, until one that does not, or a circle.
std::string Messenger::follow_those_who_wait(int &blamed, uint64_t &sequence) const {
  std::string text;
  for (int i = 0; i < membership_.size && blamed != membership_.rank; ++i) {
    const Peer &peer = peers_[size_t(blamed)];
    // In a later operation it holds up nobody here.
    if (peer.waits_in == 0 || peer.waits_in > sequence) break;
    sequence = peer.waits_in;
    text += "; " + name_of(blamed) + " waits for " + name_of(peer.waits_for) + " in #" + std::to_string(sequence);
    blamed = peer.waits_for;
  }
  return text;
}

Failure Messenger::explain(const Failure &timeout, uint64_t sequence) {
  if (timeout.status() != LK_TIMEOUT || timeout.rank() < 0) return timeout;
  auto held = lock();
  progress_links();
  int blamed = timeout.rank();
  const std::string text = follow_those_who_wait(blamed, sequence);
  return Failure(LK_TIMEOUT, timeout.what() + text, blamed == membership_.rank ? timeout.rank() : blamed);
}

void Messenger::throw_timeout(const Request &request, const Deadline &deadline) const {
  const Key &key = request.envelope_.key;
  int blamed = request.peer_;
  std::string reason = blamed == LK_ANY_SOURCE ? "no rank has " : name_of(blamed) + " has not ";
  reason += request.receives_ ? "sent" : "received";
  if (key.scope == Scope::message) reason += " a message with tag " + std::to_string(key.tag);
  reason += " within " + seconds(deadline.timeout);
  if (key.scope != Scope::message) {
    uint64_t sequence = key.sequence;
    reason += follow_those_who_wait(blamed, sequence);
    if (blamed == membership_.rank)
      blamed = request.peer_;
    else
      reason += last_seen(peers_[size_t(blamed)], {key.scope, sequence, 0});
  }
  for (const Peer &peer : peers_) {
    if (!peer.link) continue;
    bool concerned = request.peer_ == LK_ANY_SOURCE || request.peer_ == peer.link->peer;
    std::string name = name_of(peer.link->peer);
    if (concerned && !peer.link->reading())
      reason +=
          "; " + std::to_string(peer.unexpected_bytes) + " bytes of other messages from " + name + " were not received";
    if (request.peer_ == LK_ANY_SOURCE && peer.failure) reason += "; " + name + " is lost";
  }
  throw Failure(LK_TIMEOUT, describe_request(request) + ": " + reason, blamed);
}

}  // namespace lowerkit::collective
