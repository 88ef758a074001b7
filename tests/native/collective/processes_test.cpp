// Ranks as processes, connected by TCP, of which one is killed, stopped or slow in the middle of its operations.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <vector>

#include "check.h"
#include "algorithms/operations.h"
#include "messenger/stream_link.h"
#include "tcp_pair.h"

using namespace lowerkit::collective;

namespace {

constexpr int kRanks = 4;
constexpr int kVictim = 2;
constexpr int64_t kSecond = 1000000000;

// What a rank says at its end.
struct Outcome {
  int32_t status;
  int32_t blamed;
  int64_t nanoseconds;
  char text[500];
};

enum class Fault { none, killed, stopped, slow };

void run_operation(Messenger &messenger, int operation, uint64_t sequence, int64_t count, int64_t timeout) {
  std::vector<float> input(size_t(count * kRanks), 1), output(size_t(count * kRanks), 2);
  std::vector<lk_part> parts, input_parts;
  for (int i = 0; i < kRanks; ++i) {
    parts.push_back({output.data() + i * count, count});
    input_parts.push_back({input.data() + i * count, count});
  }
  lk_call call{};
  call.operation = operation;
  call.count = count;
  call.root = int(sequence) % kRanks;
  call.input = input.data();
  call.output = output.data();
  call.parts = operation == LK_REDUCE_SCATTER || operation == LK_SCATTER ? input_parts.data() : parts.data();
  call.input_parts = input_parts.data();
  Descriptor descriptor = describe(call);
  Execution execution{call, descriptor, fingerprint(descriptor), sequence, Deadline::in(timeout), {}};
  run_over_messages(messenger, {0, 1, 2, 3}, execution);
}

Outcome run_rank(int rank, const int *descriptors, int operation, int64_t count, Fault fault) {
  Membership member("processes", rank, kRanks);
  std::vector<std::unique_ptr<Link>> links(kRanks);
  for (int peer = 0; peer < kRanks; ++peer)
    if (peer != rank)
      links[size_t(peer)] = std::make_unique<StreamLink>(rank, peer, kRanks, make_tcp_stream(peer, descriptors[peer]));
  MessengerOptions options;
  options.ranks_of_host = kRanks;
  Messenger messenger(member, std::move(links), options);
  // One that is stopped is noticed at the deadline only.
  Outcome outcome{LK_OK, -1, 0, ""};
  int64_t start = monotonic_nanoseconds();
  try {
    for (uint64_t sequence = 1; sequence <= 12; ++sequence) {
      if (rank == kVictim && sequence == 6) {
        if (fault == Fault::killed) raise(SIGKILL);
        if (fault == Fault::stopped) raise(SIGSTOP);
        if (fault == Fault::slow) usleep(200000);
      }
      const int64_t timeout = fault == Fault::stopped && sequence >= 6 ? kSecond : 120 * kSecond;
      start = monotonic_nanoseconds();
      run_operation(messenger, operation, sequence, count, timeout);
    }
  } catch (const Failure &failure) {
    outcome.status = failure.status();
    outcome.blamed = failure.rank();
    std::snprintf(outcome.text, sizeof outcome.text, "%s", failure.what());
    messenger.send_abort(failure.status(), failure.what(), failure.rank(), Deadline::in(kSecond / 5));
  }
  outcome.nanoseconds = monotonic_nanoseconds() - start;
  return outcome;
}

std::vector<Outcome> run_group(int operation, int64_t count, Fault fault) {
  int ends[kRanks][kRanks], reports[kRanks][2];
  pid_t processes[kRanks];
  for (int low = 0; low < kRanks; ++low)
    for (int high = low + 1; high < kRanks; ++high) {
      int pair[2];
      connect_pair(pair);
      ends[low][high] = pair[0];
      ends[high][low] = pair[1];
    }
  for (int rank = 0; rank < kRanks; ++rank) {
    if (pipe(reports[rank])) std::abort();
    processes[rank] = fork();
    if (processes[rank]) continue;
    for (int other = 0; other < kRanks; ++other)
      for (int peer = 0; peer < kRanks; ++peer)
        if (other != rank && peer != other) close(ends[other][peer]);
    Outcome outcome = run_rank(rank, ends[rank], operation, count, fault);
    _exit(write(reports[rank][1], &outcome, sizeof outcome) != sizeof outcome);
  }
  for (int rank = 0; rank < kRanks; ++rank)
    for (int peer = 0; peer < kRanks; ++peer)
      if (peer != rank) close(ends[rank][peer]);
  std::vector<Outcome> outcomes(kRanks, Outcome{-1, -1, 0, ""});
  for (int i = 0; i < kRanks; ++i) {
    int rank = (kVictim + 1 + i) % kRanks;  // the victim last
    close(reports[rank][1]);
    if (rank == kVictim && fault == Fault::stopped) kill(processes[rank], SIGKILL);
    if (read(reports[rank][0], &outcomes[size_t(rank)], sizeof(Outcome)) < 0) std::abort();
    close(reports[rank][0]);
  }
  for (pid_t process : processes) waitpid(process, nullptr, 0);
  return outcomes;
}

const int kCollectives[] = {LK_BARRIER, LK_BROADCAST,  LK_REDUCE,         LK_ALL_REDUCE, LK_SCATTER,
                            LK_GATHER,  LK_ALL_GATHER, LK_REDUCE_SCATTER, LK_ALL_TO_ALL};

void expect_blame(Fault fault, int64_t most_nanoseconds) {
  for (int operation : kCollectives)
    for (int64_t count : {10, 100000}) {
      auto outcomes = run_group(operation, count, fault);
      bool named = false;
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank == kVictim) continue;
        const Outcome &outcome = outcomes[size_t(rank)];
        std::string text =
            std::string(kOperationNames[operation]) + ", rank " + std::to_string(rank) + ": " + outcome.text;
        if (outcome.status <= LK_OK || outcome.nanoseconds > most_nanoseconds || !std::strstr(outcome.text, " #"))
          check::report(__FILE__, __LINE__, std::to_string(outcome.nanoseconds) + " ns, " + text);
        named |= outcome.blamed == kVictim && std::strstr(outcome.text, "rank 2");
      }
      if (!named) check::report(__FILE__, __LINE__, outcomes[0].text);
    }
}

}  // namespace

TEST(a_killed_process_is_named_at_once) { expect_blame(Fault::killed, 100 * kSecond); }

TEST(a_stopped_process_is_named_at_the_deadline) { expect_blame(Fault::stopped, 100 * kSecond); }

TEST(a_slow_process_is_waited_for) {
  for (int operation : kCollectives)
    for (const Outcome &outcome : run_group(operation, 1000, Fault::slow))
      if (outcome.status != LK_OK) check::report(__FILE__, __LINE__, outcome.text);
}

int main(int count, char **arguments) { return check::run(count > 1 ? arguments[1] : ""); }
