// Messages and all_reduce between processes over TCP on the loopback interface: messages [RANKS]. One line for each
// size: the slowest rank's median, and the bandwidth by the rule of nccl-tests (bus bandwidth for all_reduce).
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "algorithms/operations.h"
#include "messenger/stream_link.h"
#include "tcp_pair.h"

using namespace lowerkit::collective;

namespace {

Deadline soon() { return Deadline::in(60000000000); }

class Rank {
 public:
  Rank(Membership &member, const std::vector<int> &descriptors) : member_(member) {
    std::vector<std::unique_ptr<Link>> links(static_cast<size_t>(member.size));
    for (int peer = 0; peer < member.size; ++peer) {
      all_.push_back(peer);
      if (peer != member.rank)
        links[size_t(peer)] = std::make_unique<StreamLink>(member.rank, peer, member.size,
                                                           make_tcp_stream(peer, descriptors[size_t(peer)]));
    }
    MessengerOptions options;
    options.ranks_of_host = member.size;
    messenger_ = std::make_unique<Messenger>(member, std::move(links), options);
  }

  void all_reduce(std::vector<float> &data, int64_t count) {
    lk_call call{};
    call.operation = LK_ALL_REDUCE;
    call.count = count;
    call.input = call.output = data.data();
    run(call);
  }
  void barrier() {
    lk_call call{};
    call.operation = LK_BARRIER;
    run(call);
  }
  void send(const std::vector<float> &data, int64_t count) {
    Request request;
    messenger_->post_send(request, 1 - member_.rank, message(count), data.data(), count * 4);
    messenger_->wait(request, soon());
  }
  void receive(std::vector<float> &data, int64_t count) {
    Request request;
    messenger_->post_receive(request, 1 - member_.rank, message(count), data.data(), count * 4, true);
    messenger_->wait(request, soon());
  }

 private:
  void run(const lk_call &call) {
    Descriptor descriptor = describe(call);
    Execution execution{call, descriptor, fingerprint(descriptor), ++sequence_, soon(), {}};
    run_over_messages(*messenger_, all_, execution);
  }
  static Envelope message(int64_t count) {
    Descriptor descriptor;
    descriptor.operation = LK_SEND;
    descriptor.count = count;
    return Envelope::message(descriptor, 1);
  }

  Membership &member_;
  std::vector<int> all_;
  std::unique_ptr<Messenger> messenger_;
  uint64_t sequence_ = 0;
};

template <class Round>
double median_microseconds(Rank &rank, int rounds, Round round) {
  std::vector<double> times;
  for (int i = 0; i < rounds + rounds / 10 + 1; ++i) {
    rank.barrier();
    int64_t start = monotonic_nanoseconds();
    round();
    if (i > rounds / 10) times.push_back(double(monotonic_nanoseconds() - start) / 1e3);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void run_rank(int own, int size, const std::vector<int> &descriptors) {
  Membership member("bench", own, size);
  Rank rank(member, descriptors);
  std::vector<float> data(16 << 20, 1.0f);
  for (int64_t bytes : {16, 4096, 65536, 1 << 20, 16 << 20, 64 << 20}) {
    int rounds = bytes <= 65536 ? 1000 : bytes <= 1 << 20 ? 200 : 20;
    double both = 0;
    if (size == 2)
      both = median_microseconds(rank, rounds, [&] {
        if (own == 0) rank.send(data, bytes / 4);
        rank.receive(data, bytes / 4);
        if (own == 1) rank.send(data, bytes / 4);
      });
    double reduced = median_microseconds(rank, rounds, [&] { rank.all_reduce(data, bytes / 4); });
    if (own) continue;
    std::printf("%10lld bytes: ", static_cast<long long>(bytes));
    if (size == 2) std::printf("one way %10.1f us %6.2f GB/s, ", both / 2, double(bytes) / (both / 2) / 1e3);
    std::printf("all_reduce %10.1f us %6.2f GB/s\n", reduced, 2.0 * (size - 1) / size * double(bytes) / reduced / 1e3);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int count, char **arguments) {
  const int size = count > 1 ? std::atoi(arguments[1]) : 2;
  std::vector<std::vector<int>> ends(static_cast<size_t>(size), std::vector<int>(static_cast<size_t>(size), -1));
  for (int low = 0; low < size; ++low)
    for (int high = low + 1; high < size; ++high) {
      int pair[2];
      connect_pair(pair);
      ends[size_t(low)][size_t(high)] = pair[0];
      ends[size_t(high)][size_t(low)] = pair[1];
    }
  for (int rank = 0; rank < size; ++rank) {
    if (fork() == 0) {
      try {
        run_rank(rank, size, ends[size_t(rank)]);
      } catch (const Failure &failure) {
        std::fprintf(stderr, "%s\n", failure.what());
        _exit(1);
      }
      _exit(0);
    }
  }
  int worst = 0, status = 0;
  while (wait(&status) > 0) worst |= status;
  return worst != 0;
}
