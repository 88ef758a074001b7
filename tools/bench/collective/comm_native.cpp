// Collectives of lowerkit and of Open MPI in the same processes, turn by turn. Started by comm.py under mpirun; prints
// one JSON object a line on rank 0.
//
//   sample   `batch` operations one after the other, timed by each rank; the slowest rank counts, divided by `batch`
//   turn     one sample of each engine; engines alternate, so that what disturbs the machine disturbs both
//   rotation buffers of 256 KiB and more move on through 64 MiB (or one buffer) with each operation: not in the cache;
//            smaller ones stay where they are
//
// Each engine's last result of a size is compared with the right one.
#include <fcntl.h>
#include <mpi.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "lowerkit_collective.h"

namespace {

int rank_, size_;

[[noreturn]] void stop(const char *what) {
  std::fprintf(stderr, "rank %d: %s: %s\n", rank_, what, lk_last_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

// A memfd of rank 0 that all ranks have open.
int shared_memory(int64_t bytes) {
  int source[2] = {int(getpid()), -1};
  if (rank_ == 0) {
    source[1] = memfd_create("benchmark", MFD_CLOEXEC);
    if (source[1] < 0 || ftruncate(source[1], bytes) != 0) stop("memory");
  }
  MPI_Bcast(source, 2, MPI_INT, 0, MPI_COMM_WORLD);
  if (rank_ == 0) return source[1];
  const std::string path = "/proc/" + std::to_string(source[0]) + "/fd/" + std::to_string(source[1]);
  int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) stop("opening rank 0's memory");
  return descriptor;
}

lk_group *make_group(const char *name) {
  std::vector<int32_t> all;
  for (int rank = 0; rank < size_; ++rank) all.push_back(rank);
  lk_group_config config{};
  config.name = name;
  config.rank = rank_;
  config.size = config.local_count = size_;
  config.local_ranks = all.data();
  config.segment_descriptor = shared_memory(lk_segment_bytes(size_, 0));
  config.timeout = 120000000000;
  lk_group *group;
  if (lk_group_create(&config, &group) != LK_OK) stop("group");
  return group;
}

struct Buffers {
  char *input;
  char *output;
  int64_t slots;  // how many of one size lie behind each other
};

enum Engine { kLowerkit, kArena, kOpenMpi, kEngines };
const char *const kNames[kEngines] = {"lowerkit", "lowerkit arena", "openmpi"};

lk_group *groups[2];

void run(Engine engine, const std::string &operation, float *input, float *output, int64_t count) {
  const int each = int(count / size_);
  if (engine == kOpenMpi) {
    if (operation == "all_reduce") {
      MPI_Allreduce(input, output, int(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (operation == "broadcast") {
      MPI_Bcast(output, int(count), MPI_FLOAT, 0, MPI_COMM_WORLD);
    } else if (operation == "all_gather") {
      MPI_Allgather(input, each, MPI_FLOAT, output, each, MPI_FLOAT, MPI_COMM_WORLD);
    } else if (operation == "reduce_scatter") {
      MPI_Reduce_scatter_block(input, output, each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else {
      MPI_Alltoall(input, each, MPI_FLOAT, output, each, MPI_FLOAT, MPI_COMM_WORLD);
    }
    return;
  }
  std::vector<lk_part> given(static_cast<size_t>(size_)), taken(static_cast<size_t>(size_));
  lk_call call{};
  call.dtype = LK_F32;
  call.factor = 1;
  call.input = input;
  call.output = output;
  call.count = count;
  if (operation != "all_reduce" && operation != "broadcast")
    for (int rank = 0; rank < size_; ++rank) {
      given[size_t(rank)] = {input + rank * each, each};
      taken[size_t(rank)] = {output + rank * each, each};
    }
  if (operation == "all_reduce") {
    call.operation = LK_ALL_REDUCE;
  } else if (operation == "broadcast") {
    call.operation = LK_BROADCAST;
  } else if (operation == "all_gather") {
    call.operation = LK_ALL_GATHER;
    call.count = each;
    call.parts = taken.data();
    taken[size_t(rank_)].count = each;
  } else if (operation == "reduce_scatter") {
    call.operation = LK_REDUCE_SCATTER;
    call.count = each;
    call.parts = given.data();
  } else {
    call.operation = LK_ALL_TO_ALL;
    call.count = 0;
    call.input_parts = given.data();
    call.parts = taken.data();
  }
  if (lk_run(groups[engine == kArena], &call) != LK_OK) stop("lk_run");
}

float value(int rank, int64_t i) { return float((rank * 3 + i) % 7); }

void verify(Engine engine, const std::string &operation, const float *output, int64_t count) {
  const int64_t each = count / size_;
  int64_t length = operation == "reduce_scatter"                            ? each
                   : operation == "all_gather" || operation == "all_to_all" ? each * size_
                                                                            : count;
  for (int64_t i = 0; i < length; i += length > 1000 ? 97 : 1) {
    float expected = 0;
    if (operation == "all_reduce")
      for (int rank = 0; rank < size_; ++rank) expected += value(rank, i);
    else if (operation == "reduce_scatter")
      for (int rank = 0; rank < size_; ++rank) expected += value(rank, rank_ * each + i);
    else if (operation == "broadcast")
      expected = value(0, i);
    else if (operation == "all_gather")
      expected = value(int(i / each), i % each);
    else
      expected = value(int(i / each), rank_ * each + i % each);
    if (output[i] == expected) continue;
    std::fprintf(stderr, "rank %d: %s of %s: element %lld is %g, not %g\n", rank_, kNames[engine], operation.c_str(),
                 (long long)i, double(output[i]), double(expected));
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

double seconds() { return MPI_Wtime(); }

// Bytes read and written a second by a copy of memory: by one rank alone, and by all between two barriers.
void report_bandwidth() {
  const size_t bytes = size_t(64) << 20;
  std::vector<char> from(bytes, 1), to(bytes, 2);
  double best[2] = {0, 0};
  for (int together = 0; together < 2; ++together)
    for (int repeat = 0; repeat < 5; ++repeat) {
      MPI_Barrier(MPI_COMM_WORLD);
      double start = seconds();
      if (together || rank_ == 0)
        for (size_t at = 0; at < bytes; at += 128 << 10) std::memcpy(&to[at], &from[at], 128 << 10);
      double spent = seconds() - start, slowest;
      MPI_Allreduce(&spent, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      best[together] = std::max(best[together], (together ? size_ : 1) * 2.0 * double(bytes) / slowest);
    }
  if (rank_ == 0)
    std::printf("{\"ranks\": %d, \"core_bandwidth\": %.4g, \"memory_bandwidth\": %.4g}\n", size_, best[0], best[1]);
}

}  // namespace

// comm_native OPERATION SIZES TURNS: sizes in bytes, separated by commas.
int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  if (argc != 4) stop("usage: comm_native OPERATION SIZES TURNS");
  const std::string operation = argv[1];
  std::vector<int64_t> sizes;
  for (char *item = std::strtok(argv[2], ","); item; item = std::strtok(nullptr, ","))
    sizes.push_back(std::atoll(item));
  const int turns = std::atoi(argv[3]);
  const int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  const int64_t pool = std::max<int64_t>(64 << 20, largest);

  groups[0] = make_group("benchmark");
  groups[1] = make_group("benchmark with arena");
  const int64_t arena_bytes = 2 * pool;
  void *arena;
  int memory = shared_memory(arena_bytes * size_);
  if (lk_group_attach_arena(groups[1], memory, arena_bytes, &arena) != LK_OK) stop("arena");
  char *own =
      static_cast<char *>(mmap(nullptr, size_t(2 * pool), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (own == MAP_FAILED) stop("memory");
  report_bandwidth();

  for (int64_t bytes : sizes) {
    const int64_t count = bytes / 4;
    const int64_t slots = bytes < (256 << 10) ? 1 : pool / bytes;
    Buffers buffers[kEngines];
    for (int engine = 0; engine < kEngines; ++engine) {
      char *base = engine == kArena ? static_cast<char *>(arena) : own;
      buffers[engine] = {base, base + pool, slots};
      if (engine == kOpenMpi) continue;  // has the same memory as lowerkit
      for (int64_t slot = 0; slot < slots; ++slot)
        for (int64_t i = 0; i < count; ++i) {
          reinterpret_cast<float *>(base + slot * bytes)[i] = value(rank_, i);
          reinterpret_cast<float *>(base + pool + slot * bytes)[i] = operation == "broadcast" ? value(rank_, i) : 0;
        }
    }
    const int batch = bytes <= (64 << 10) ? 50 : bytes <= (1 << 20) ? 5 : 1;
    std::vector<double> samples[kEngines];
    int64_t slot = 0;
    for (int turn = 0; turn < turns; ++turn)
      for (int engine = 0; engine < kEngines; ++engine) {
        if (engine == kArena && operation != "all_reduce") continue;
        MPI_Barrier(MPI_COMM_WORLD);
        const Buffers &own_buffers = buffers[engine];
        double start = 0;
        for (int i = -1; i < batch; ++i) {  // the first one warms up
          if (i == 0) start = seconds();
          slot = (slot + 1) % slots;
          run(Engine(engine), operation, reinterpret_cast<float *>(own_buffers.input + slot * bytes),
              reinterpret_cast<float *>(own_buffers.output + slot * bytes), count);
        }
        double spent = (seconds() - start) / batch, slowest;
        MPI_Allreduce(&spent, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        samples[engine].push_back(slowest);
        verify(Engine(engine), operation, reinterpret_cast<float *>(own_buffers.output + slot * bytes), count);
      }
    if (rank_) continue;
    for (int engine = 0; engine < kEngines; ++engine) {
      if (samples[engine].empty()) continue;
      std::printf("{\"engine\": \"%s\", \"operation\": \"%s\", \"ranks\": %d, \"bytes\": %lld, \"seconds\": [",
                  kNames[engine], operation.c_str(), size_, (long long)bytes);
      for (size_t i = 0; i < samples[engine].size(); ++i) std::printf("%s%.4g", i ? ", " : "", samples[engine][i]);
      std::printf("]}\n");
    }
    std::fflush(stdout);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  for (lk_group *group : groups) lk_group_destroy(group);
  MPI_Finalize();
}
