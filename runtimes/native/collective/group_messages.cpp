// Sends and receives of a group. They are not in order with its collectives.
#include <algorithm>

#include "group.h"

namespace lowerkit::collective {
namespace {

// How long the carrier drives the links before it looks which messages are over.
constexpr int64_t kCarry = 2000000;
// How often the carrier looks whether a message that nobody waits for needs it, and how long after the last message it
// still looks. To be woken for each message would cost its sender more than the message.
constexpr int64_t kCarrierInterval = 200000;
constexpr int kIdleIntervals = 100;

}  // namespace

void Group::post(Request &request, const Execution &execution) {
  const lk_call &call = execution.call;
  const Envelope envelope = Envelope::message(execution.descriptor, call.tag);
  const int64_t bytes = call.count * kDtypeBytes[call.dtype];
  if (call.operation == LK_SEND)
    messenger_->post_send(request, call.root, envelope, call.input, bytes);
  else
    messenger_->post_receive(request, call.root, envelope, call.output, bytes, false);
}

void Group::run_message(const lk_call &call) {
  Execution execution = execution_of(call, 0);
  execution.begin();
  try {
    membership_.check();
    Request request;
    post(request, execution);
    messenger_->wait(request, execution.deadline, &execution.waiting);
  } catch (const Failure &failure) {
    recorder_.finish(execution, failure.status());
    throw;
  }
  recorder_.finish(execution, LK_OK);
}

std::shared_ptr<Work> Group::start_message(const lk_call &call) {
  membership_.check();
  auto work = std::make_shared<Work>(call, membership_.size);
  work->execution = std::make_unique<Execution>(execution_of(work->owned.call, 0));
  work->request = std::make_unique<Request>();
  work->execution->begin();
  post(*work->request, *work->execution);
  std::lock_guard<std::mutex> lock(mutex_);
  if (conclude(*work, false)) return work;
  messages_.push_back(work);
  start_thread(carrier_, &Group::carry_messages);
  if (carrier_sleeps_) carry_.notify_all();
  return work;
}

// With the mutex held. Takes over how the request ended; true when it has. A request past its deadline, or of an
// aborted group, fails here and is withdrawn: its buffer is the caller's again.
bool Group::conclude(Work &work, bool all_failed) {
  if (work.done) return true;
  lk_status status = LK_OK;
  std::string message;
  try {
    const bool late = work.execution->deadline.passed(recorder_.now());
    if (!work.request->done() && !all_failed && !late) return false;
    if (!work.request->done()) {
      // Why the group was aborted, not that the rank which told so has ended since.
      membership_.check();
      // Throws, whatever it waits for: the time is up.
      messenger_->wait(*work.request, work.execution->deadline);
    }
    messenger_->test(*work.request);
    work.source = work.request->source();
    work.bytes = work.request->bytes();
  } catch (const Failure &failure) {
    status = failure.status();
    message = failure.what();
    messenger_->cancel(*work.request);
  }
  work.status = status;
  work.message = std::move(message);
  work.done = true;
  recorder_.finish(*work.execution, status);
  return true;
}

void Group::wait_for_message(Work &work, int64_t timeout) {
  Deadline deadline = work.execution->deadline;
  if (timeout > 0) {
    const Deadline asked = Deadline::in(timeout, recorder_.now());
    if (asked.at < deadline.at) deadline = asked;
  }
  Waiting waiting;
  try {
    messenger_->wait(*work.request, deadline, &waiting);
  } catch (const Failure &failure) {
    // Still running: only this call's patience is over.
    if (failure.status() == LK_TIMEOUT && deadline.at < work.execution->deadline.at) throw;
    if (failure.status() == LK_INTERRUPTED) throw;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (!work.done) work.execution->waiting = waiting;
  conclude(work, membership_.aborted());
  if (work.status != LK_OK) throw Failure(work.status, work.message);
}

// Messages move on although their sender computes: long ones need their receiver's grant answered. Who waits for a
// message drives the links himself, and faster than this thread could tell him.
void Group::carry_messages() {
  std::unique_lock<std::mutex> lock(mutex_);
  int idle_intervals = 0;  // without a message
  while (!stopping_) {
    if (idle_intervals >= kIdleIntervals || presence_.ranks()) {
      carrier_sleeps_ = true;
      carry_.wait(lock, [&] { return stopping_ || !messages_.empty(); });
      carrier_sleeps_ = false;
      idle_intervals = 0;
    }
    if (!presence_.ranks()) carry_.wait_for(lock, kCarrierInterval, [&] { return stopping_; });
    idle_intervals = messages_.empty() ? idle_intervals + 1 : 0;
    if (!stopping_ && !messages_.empty()) {
      auto first = messages_.front();
      lock.unlock();
      try {
        // In a simulation nothing is saved by giving way, and its time has to pass.
        if (presence_.ranks())
          messenger_->wait(*first->request, Deadline::in(kCarry, recorder_.now()));
        else
          messenger_->drive_unless_awaited(*first->request, Deadline::in(kCarry, recorder_.now()));
      } catch (const Failure &) {
        // How it ended is read below.
      }
      lock.lock();
    }
    const bool over = stopping_ || membership_.aborted();
    messages_.remove_if([&](const std::shared_ptr<Work> &work) { return conclude(*work, over); });
  }
  messages_.remove_if([&](const std::shared_ptr<Work> &work) { return conclude(*work, true); });
}

}  // namespace lowerkit::collective
