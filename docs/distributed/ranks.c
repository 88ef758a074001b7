/* The collectives from C: ranks as processes, over shared memory or TCP, with neither Python nor C++.
 *
 *   cc -std=c11 ranks.c -I RUNTIMES/include -L RUNTIMES -llowerkit_collective -Wl,-rpath,RUNTIMES -o ranks
 *   ./ranks 3 memory && ./ranks 3 tcp
 *
 * RUNTIMES is the folder of python -c "from lowerkit.runtimes import _collective; print(_collective.__file__)". How
 * ranks find each other is the program's: here the first process makes all connections, and forks the ranks.
 */
#define _GNU_SOURCE /* memfd_create */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lowerkit_collective.h"

enum { MOST_RANKS = 16, COUNT = 1000 };
static const int64_t ARENA_BYTES = 1 << 16;
static const int64_t TIMEOUT = 20 * INT64_C(1000000000);

static void demand(int holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "%s: %s\n", what, lk_last_error());
  exit(1);
}

/* A call on `count` floats; the caller sets what else its operation reads. */
static lk_call call_of(int operation, int64_t count) {
  lk_call call;
  memset(&call, 0, sizeof call);
  call.operation = operation;
  call.dtype = LK_F32;
  call.count = count;
  call.factor = 1;
  return call;
}

static void fill(float *values, int count, float value) {
  for (int i = 0; i < count; ++i) values[i] = value;
}

static int all(const float *values, int count, float value) {
  for (int i = 0; i < count; ++i)
    if (values[i] != value) return 0;
  return 1;
}

static void run(lk_group *group, const lk_call *call, const char *name) { demand(lk_run(group, call) == LK_OK, name); }

/* Every operation, at once: rank r contributes r + 1 everywhere. */
static void operations(lk_group *group, int rank, int size) {
  static float own[COUNT], result[COUNT], inputs[MOST_RANKS][COUNT], outputs[MOST_RANKS][COUNT];
  lk_part input_parts[MOST_RANKS], output_parts[MOST_RANKS];
  const float total = (float)(size * (size + 1)) / 2, mine = (float)(rank + 1);
  fill(own, COUNT, mine);
  for (int r = 0; r < size; ++r) {
    fill(inputs[r], COUNT, mine);
    input_parts[r] = (lk_part){inputs[r], COUNT};
    output_parts[r] = (lk_part){outputs[r], COUNT};
  }
  lk_call call = call_of(LK_BARRIER, 0);
  run(group, &call, "barrier");

  call = call_of(LK_ALL_REDUCE, COUNT);
  call.input = own;
  call.output = result;
  run(group, &call, "all_reduce");
  demand(all(result, COUNT, total), "the sum");
  call.reduction = LK_MAX;
  run(group, &call, "all_reduce");
  demand(all(result, COUNT, (float)size), "the maximum");

  call = call_of(LK_REDUCE, COUNT);
  call.input = own;
  call.output = result;
  run(group, &call, "reduce");
  demand(rank != 0 || all(result, COUNT, total), "the sum of rank 0");

  call = call_of(LK_BROADCAST, COUNT);
  call.output = result;
  call.root = size - 1;
  fill(result, COUNT, mine);
  run(group, &call, "broadcast");
  demand(all(result, COUNT, (float)size), "what the last rank sent");

  call = call_of(LK_GATHER, COUNT);
  call.input = own;
  call.parts = output_parts;
  run(group, &call, "gather");
  for (int r = 0; r < size; ++r) demand(rank != 0 || all(outputs[r], COUNT, (float)(r + 1)), "what rank 0 gathered");

  call = call_of(LK_SCATTER, COUNT);
  call.parts = input_parts;
  call.output = result;
  run(group, &call, "scatter");
  demand(all(result, COUNT, 1), "a part of rank 0");

  call = call_of(LK_ALL_GATHER, COUNT);
  call.input = own;
  call.parts = output_parts;
  run(group, &call, "all_gather");
  for (int r = 0; r < size; ++r) demand(all(outputs[r], COUNT, (float)(r + 1)), "what was gathered");

  call = call_of(LK_REDUCE_SCATTER, COUNT);
  call.parts = input_parts;
  call.output = result;
  run(group, &call, "reduce_scatter");
  demand(all(result, COUNT, total), "a part of the sum");

  call = call_of(LK_ALL_TO_ALL, 0);
  call.input_parts = input_parts;
  call.parts = output_parts;
  run(group, &call, "all_to_all");
  for (int r = 0; r < size; ++r) demand(all(outputs[r], COUNT, (float)(r + 1)), "what all sent");
}

/* Around the ring, behind the caller. */
static void messages(lk_group *group, int rank, int size) {
  static float sent[COUNT], received[COUNT];
  fill(sent, COUNT, (float)rank);
  lk_call send = call_of(LK_SEND, COUNT), receive = call_of(LK_RECEIVE, COUNT);
  send.input = sent;
  send.root = (rank + 1) % size;
  receive.output = received;
  receive.root = LK_ANY_SOURCE;
  lk_work *works[2];
  demand(lk_start(group, &send, &works[0]) == LK_OK && lk_start(group, &receive, &works[1]) == LK_OK, "messages");
  for (int i = 0; i < 2; ++i) demand(lk_work_wait(works[i], 0) == LK_OK, "a message");
  int32_t source;
  int64_t bytes;
  lk_work_received(works[1], &source, &bytes);
  demand(source == (rank + size - 1) % size && bytes == COUNT * 4 && all(received, COUNT, (float)source),
         "the message");
  for (int i = 0; i < 2; ++i) lk_work_release(works[i]);
}

/* Two operations that are run again and again by one call each. */
static void plans(lk_group *group, int rank, int size) {
  static float values[COUNT];
  lk_plan *plan;
  lk_call sum = call_of(LK_ALL_REDUCE, COUNT), barrier = call_of(LK_BARRIER, 0);
  sum.input = sum.output = values;
  demand(lk_plan_create(&plan) == LK_OK && lk_plan_add(plan, group, &sum) == LK_OK &&
             lk_plan_add(plan, group, &barrier) == LK_OK,
         "plan");
  for (int turn = 0; turn < 5; ++turn) {
    fill(values, COUNT, (float)(rank + turn));
    demand(lk_plan_run(plan) == LK_OK, "plan");
    demand(all(values, COUNT, (float)(size * (size - 1)) / 2 + (float)(size * turn)), "the plan's sum");
  }
  lk_plan_release(plan);
}

/* Memory that the other ranks of the host reach: an operation on it needs no copies. */
static void arenas(lk_group *group, int descriptor, int rank, int size) {
  void *own;
  demand(lk_group_attach_arena(group, descriptor, ARENA_BYTES, &own) == LK_OK, "arena");
  const int count = (int)(ARENA_BYTES / (int64_t)sizeof(float));
  fill(own, count, (float)(rank + 1));
  lk_call call = call_of(LK_ALL_REDUCE, count);
  call.input = call.output = own;
  run(group, &call, "all_reduce in the arena");
  demand(all(own, count, (float)(size * (size + 1)) / 2), "the sum in the arena");
}

/* A call that cannot be made says why, and the group goes on. */
static void refusals(lk_group *group, int size) {
  lk_call call = call_of(LK_BROADCAST, 1);
  float value = 0;
  call.output = &value;
  call.root = size;
  demand(lk_run(group, &call) == LK_INVALID && strstr(lk_last_error(), "broadcast"), "a root that is no rank");
  lk_record records[64];
  demand(lk_group_aborted(group, NULL, 0) == 0 && lk_group_records(group, records, 64) > 0, "the group goes on");
}

static void rank_main(int rank, int size, int segment, int arena, const int *connections) {
  int32_t locals[MOST_RANKS];
  for (int r = 0; r < size; ++r) locals[r] = r;
  const int32_t self = rank;
  const int is_local = segment >= 0;
  lk_group_config config;
  memset(&config, 0, sizeof config);
  config.name = "ranks";
  config.rank = rank;
  config.size = size;
  config.local_count = is_local ? size : 1;
  config.local_ranks = is_local ? locals : &self;
  config.segment_descriptor = segment;
  config.connections = connections;
  config.timeout = TIMEOUT;
  lk_group *group;
  demand(lk_group_create(&config, &group) == LK_OK, "group");
  operations(group, rank, size);
  messages(group, rank, size);
  plans(group, rank, size);
  if (is_local) arenas(group, arena, rank, size);
  refusals(group, size);
  lk_call barrier = call_of(LK_BARRIER, 0);
  run(group, &barrier, "the last barrier"); /* nobody leaves while others wait for it */
  lk_group_destroy(group);
}

static void connect_pair(int is_local, int pair[2]) {
  if (is_local) {
    demand(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    return;
  }
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof address;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  demand(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0 &&
             getsockname(listener, (struct sockaddr *)&address, &length) == 0,
         "listener");
  pair[0] = socket(AF_INET, SOCK_STREAM, 0);
  demand(connect(pair[0], (struct sockaddr *)&address, length) == 0, "connect");
  pair[1] = accept(listener, NULL, NULL);
  demand(pair[1] >= 0, "accept");
  close(listener);
}

int main(int argc, char **argv) {
  const int size = argc > 1 ? atoi(argv[1]) : 0;
  const int is_local = argc > 2 && strcmp(argv[2], "memory") == 0;
  if (argc != 3 || size < 2 || size > MOST_RANKS || (!is_local && strcmp(argv[2], "tcp") != 0)) {
    fprintf(stderr, "usage: ranks 2..%d memory|tcp\n", MOST_RANKS);
    return 2;
  }
  int connections[MOST_RANKS][MOST_RANKS];
  for (int a = 0; a < size; ++a)
    for (int b = a; b < size; ++b) {
      int pair[2] = {-1, -1};
      if (a != b) connect_pair(is_local, pair);
      connections[a][b] = pair[0];
      connections[b][a] = pair[1];
    }
  int segment = -1, arena = -1;
  if (is_local) {
    segment = memfd_create("segment", MFD_CLOEXEC);
    arena = memfd_create("arena", MFD_CLOEXEC);
    demand(ftruncate(segment, lk_segment_bytes(size, 0)) == 0 && ftruncate(arena, size * ARENA_BYTES) == 0, "memory");
  }
  for (int rank = 0; rank < size; ++rank)
    if (fork() == 0) {
      for (int r = 0; r < size; ++r) /* the others' ends: whoever holds one keeps a dead rank alive */
        for (int s = 0; s < size; ++s)
          if (r != rank && r != s) close(connections[r][s]);
      rank_main(rank, size, segment, arena, connections[rank]);
      exit(0);
    }
  for (int a = 0; a < size; ++a)
    for (int b = 0; b < size; ++b)
      if (a != b) close(connections[a][b]);
  int failed = 0, status;
  while (wait(&status) > 0) failed += status != 0;
  if (failed == 0)
    printf("%d ranks over %s: all operations, messages, plans%s\n", size, argv[2], is_local ? ", arena" : "");
  return failed != 0;
}
