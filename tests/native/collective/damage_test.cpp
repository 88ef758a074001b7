// Shared memory that another rank's bug wrote into: a rank ends with an error or with results, within its own memory.
//
// An optional argument: the number of random trials. Without sanitizers this shows crashes and hangs; tools/sanitize.sh
// shows reads and writes beyond a buffer.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>

#include "ranks.h"
#include "board/segment.h"

using namespace lowerkit::collective;

namespace {

constexpr int64_t kSecond = 1000000000;

class Mapped {
 public:
  Mapped(int descriptor, int64_t bytes) : bytes_(bytes) {
    data_ = static_cast<uint8_t *>(mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
    REQUIRE(data_ != MAP_FAILED, "mmap");
  }
  ~Mapped() { munmap(data_, size_t(bytes_)); }
  uint8_t *data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  uint8_t *data_;
  int64_t bytes_;
};

// Exactly as large as what an operation may touch, so that a sanitizer sees one byte more.
struct Buffers {
  Buffers(int ranks, int64_t count) : count(count) {
    for (int i = 0; i < ranks; ++i) {
      given.emplace_back(new float[size_t(count)]());
      taken.emplace_back(new float[size_t(count)]());
      inputs.push_back({given.back().get(), count});
      outputs.push_back({taken.back().get(), count});
    }
  }
  lk_call call(int operation) const {
    lk_call call{};
    call.operation = operation;
    call.dtype = LK_F32;
    call.count = count;
    call.input = given[0].get();
    call.output = taken[0].get();
    call.input_parts = inputs.data();
    call.parts = operation == LK_REDUCE_SCATTER || operation == LK_SCATTER ? inputs.data() : outputs.data();
    return call;
  }
  int64_t count;
  std::vector<std::unique_ptr<float[]>> given, taken;
  std::vector<lk_part> inputs, outputs;
};

constexpr int kOperations = 9;
constexpr int64_t kCounts[] = {1, 2, 12, 300, 5000, 70000};

void write_damage(uint8_t *at, int64_t room, std::mt19937_64 &random) {
  const uint64_t values[] = {0,
                             1,
                             ~uint64_t(0),
                             uint64_t(1) << 63,
                             uint64_t(1) << 47,
                             (uint64_t(1) << 47) - 1,
                             random() % 4096,
                             random() % (1 << 20),
                             random(),
                             ~uint64_t(0) - random() % 4096};
  const uint64_t value = values[random() % 10];
  const int64_t bytes = std::min<int64_t>(room, int64_t(8) << (random() % 8));
  for (int64_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t word = random() % 2 ? value : random();
    std::memcpy(at + i, &word, 8);
  }
}

// A place that a rank reads: its block rather than the data behind it, most of the time.
int64_t place_of_damage(const Mapped &memory, int ranks, int64_t rank_bytes, std::mt19937_64 &random) {
  const int64_t block = kPage + int64_t(random() % uint64_t(ranks)) * rank_bytes;
  switch (random() % 8) {
    case 0:
      return int64_t(random() % uint64_t(memory.bytes() / 8)) * 8;
    case 1:  // the header, but for its failure
      return int64_t(random() % 24) * 8;
    case 2:
      return int64_t(offsetof(SegmentHeader, failed)) + int64_t(random() % 66) * 8;
    case 3:  // one-shot areas
      return block + kPage + int64_t(random() % 64) * 8;
    case 4: {  // rings
      const int64_t rings = kPage + ranks * rank_bytes;
      const int64_t ring = int64_t(random() % uint64_t(ranks * (ranks - 1)));
      return rings + ring * Segment::ring_bytes(ranks) + int64_t(random() % 80) * 8;
    }
    default:
      return block + int64_t(random() % (sizeof(RankBlock) / 8)) * 8;
  }
}

void random_trial(uint64_t seed) {
  std::mt19937_64 random(seed);
  const int ranks = 2 + int(random() % 3);
  lk_tuning tuning{};
  tuning.tile_bytes = 64 << 10;
  Ranks group(ranks, kSecond / 3, tuning);
  const Mapped memory(group.segment(), lk_segment_bytes(ranks, tuning.tile_bytes));
  const int64_t rank_bytes =
      (memory.bytes() - kPage - ranks * (ranks - 1) * Segment::ring_bytes(ranks)) / ranks;
  std::atomic<bool> over{false};
  std::thread damaging([&] {
    for (int turn = 0; turn < 200 && !over; ++turn) {
      const int64_t at = place_of_damage(memory, ranks, rank_bytes, random);
      write_damage(memory.data() + at, memory.bytes() - at, random);
      usleep(useconds_t(random() % 300));
    }
  });
  const uint64_t first = random();
  const auto start = std::chrono::steady_clock::now();
  group.run([&](int rank, lk_group *own) {
    for (uint64_t turn = 0; turn < 40; ++turn) {
      const uint64_t drawn = std::mt19937_64(first + turn)();
      const Buffers buffers(ranks, kCounts[drawn % 6]);
      lk_call call = buffers.call(int(drawn / 6 % kOperations));
      call.root = int(drawn / 60 % uint64_t(ranks));
      if (drawn / 600 % 4 == 0) {  // a message around the ring of ranks, through the rings of bytes
        call.operation = LK_SEND;
        call.root = (rank + 1) % ranks;
        lk_work *work = nullptr;
        if (lk_start(own, &call, &work) != LK_OK) return;
        call.operation = LK_RECEIVE;
        call.root = (rank + ranks - 1) % ranks;
        const bool received = lk_run(own, &call) == LK_OK;
        const bool sent = lk_work_wait(work, 0) == LK_OK;
        lk_work_release(work);
        if (!received || !sent) return;
      } else if (lk_run(own, &call) != LK_OK) {
        return;
      }
    }
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  over = true;
  damaging.join();
  REQUIRE(seconds.count() < 60, "trial %lu took %g s", static_cast<unsigned long>(seed), seconds.count());
}

// Rank 0 of two, the other one being what the test writes.
class Forged {
 public:
  explicit Forged(const char *name)
      : name_(name), memory_(memfd_create("segment", MFD_CLOEXEC)) {
    REQUIRE(ftruncate(memory_, lk_segment_bytes(2, 0)) == 0, "memory");
    const int local[] = {0, 1};
    lk_group_config config{};
    config.name = "forged";
    config.size = 2;
    config.local_count = 2;
    config.local_ranks = local;
    config.segment_descriptor = memory_;
    config.timeout = kSecond / 4;
    REQUIRE(lk_group_create(&config, &group_) == LK_OK, "group");
    segment_ = std::make_unique<Segment>(memory_, 2, 1, kDefaultTileBytes, Deadline::in(kSecond));
  }
  ~Forged() { lk_group_destroy(group_); }

  RankBlock &peer() { return segment_->block(1); }
  Segment &segment() { return *segment_; }
  lk_group *group() { return group_; }

  // Runs rank 0's first operation; `forge` fills what rank 1 seems to have written, its line comes last.
  void expect(lk_status status, const char *word, const lk_call &call, const std::function<void()> &forge) {
    std::thread other([&] {
      Line &own = segment_->block(0).lines[1];
      while (own.sequence.load() != 1) sched_yield();
      Announcement &announced = peer().announcements[1];
      announced.descriptor = segment_->block(0).announcements[1].descriptor;
      announced.bytes = segment_->block(0).announcements[1].bytes;
      announced.arena_input = announced.arena_output = -1;
      forge();
      peer().lines[1].fingerprint = own.fingerprint;
      peer().lines[1].sequence.store(1);
    });
    const lk_status found = lk_run(group_, &call);
    other.join();
    REQUIRE(found == status, "%s: status %d", name_, found);
    REQUIRE(status == LK_OK || std::strstr(lk_last_error(), word), "%s: %s", name_, lk_last_error());
  }

 private:
  const char *name_;
  int memory_;
  lk_group *group_ = nullptr;
  std::unique_ptr<Segment> segment_;
};

void tables_of_sizes() {
  const int64_t mine = 12 * 4;
  struct Case {
    int64_t to_me, to_itself;
    lk_status status;
    const char *word;
  } cases[] = {{mine, mine, LK_OK, ""},
               {mine, -8, LK_PROTOCOL, "sizes of its parts"},
               {mine, INT64_MIN, LK_PROTOCOL, "sizes of its parts"},
               {mine, INT64_MAX, LK_PROTOCOL, "sizes of its parts"},
               {mine, int64_t(1) << 47, LK_PROTOCOL, "sizes of its parts"},
               {-mine, mine, LK_PROTOCOL, "sizes of its parts"},
               {mine + 4, mine, LK_DESYNC, "expects 48"},
               {int64_t(1) << 40, mine, LK_DESYNC, "expects 48"}};
  for (const Case &one : cases) {
    Forged forged("a table of sizes");
    const Buffers buffers(2, 12);
    forged.expect(one.status, one.word, buffers.call(LK_ALL_TO_ALL), [&] {
      // Two sizes fit the line; parts of 48 bytes do not, and lie in the one-shot area.
      std::memcpy(forged.peer().lines[1].payload, &one.to_me, 8);
      std::memcpy(forged.peer().lines[1].payload + 8, &one.to_itself, 8);
      forged.peer().announcements[1].place = Place::kOneShot;
    });
  }
}

void offsets_in_the_arena() {
  constexpr int64_t kArena = 1 << 20, kCount = 40000, kBytes = kCount * 4;
  const int64_t offsets[] = {0, kArena - kBytes, kArena - kBytes + 4, kArena, -2, INT64_MIN, INT64_MAX, -kBytes};
  for (int which = 0; which < 2; ++which)
    for (const int64_t offset : offsets) {
      Forged forged("an offset in the arena");
      const int arena = memfd_create("arena", MFD_CLOEXEC);
      REQUIRE(ftruncate(arena, 2 * kArena) == 0, "arena");
      void *own = nullptr;
      REQUIRE(lk_group_attach_arena(forged.group(), arena, kArena, &own) == LK_OK, "arena");
      close(arena);
      lk_call call{};
      call.operation = LK_ALL_REDUCE;
      call.count = kCount;
      call.input = call.output = own;
      const bool sound = offset >= 0 && offset <= kArena - kBytes;
      forged.expect(sound ? LK_OK : LK_PROTOCOL, "offsets in the arena", call, [&] {
        Announcement &announced = forged.peer().announcements[1];
        announced.arena_input = which == 0 ? offset : 0;
        announced.arena_output = which == 1 ? offset : 0;
        forged.peer().reduced.value.store(1);
      });
    }
}

// Texts of errors are made from what stands there.
void descriptors_and_failures() {
  for (int byte : {0, 1, 9, 127, 128, 255}) {
    Forged timed_out("a descriptor, at the timeout");
    std::memset(static_cast<void *>(&timed_out.peer()), byte, sizeof(RankBlock));
    for (Line &line : timed_out.peer().lines) line.sequence.store(byte ? 6 : 0);
    const Buffers buffers(2, 3);
    lk_call call = buffers.call(LK_ALL_REDUCE);
    for (int turn = 0; turn < 8; ++turn)
      if (lk_run(timed_out.group(), &call) != LK_OK) break;
    REQUIRE(lk_run(timed_out.group(), &call) != LK_OK, "it was not noticed");

    Forged failed("a failure without an end");
    SegmentHeader &header = failed.segment().header();
    std::memset(header.failure, byte ? byte : 'x', sizeof(header.failure));
    std::memset(reinterpret_cast<uint8_t *>(&header) + sizeof(header), 'y', size_t(kPage) - sizeof(header));
    header.failed_rank = byte * 1000003;
    header.failed.store(2);
    REQUIRE(lk_run(failed.group(), &call) == LK_ABORTED, "not aborted");
    REQUIRE(std::strlen(lk_last_error()) < 700, "%zu bytes", std::strlen(lk_last_error()));
  }
}

}  // namespace

int main(int count, char **arguments) {
#if defined(__SANITIZE_THREAD__)
  std::printf("not run: to write while others read is what the thread sanitizer reports\n");
  return 0;
#endif
  tables_of_sizes();
  offsets_in_the_arena();
  descriptors_and_failures();
  const long trials = count > 1 ? std::atol(arguments[1]) : 300;
  for (long trial = 0; trial < trials; ++trial) random_trial(uint64_t(trial));
  std::printf("%ld random trials\n", trials);
  return 0;
}
