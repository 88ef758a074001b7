/* Collectives of lowerkit: the C interface.
 *
 * Vocabulary
 *   group      `size` ranks that communicate; a rank is one process (or, in tests, one thread)
 *   operation  one collective call; every rank of a group makes the same ones in the same order
 *   sequence   number of an operation within its group, from 1 on; named by every error
 *   local      ranks that share memory with this one: they are served by one shared segment
 *   work       an operation that runs on, behind the caller
 *   plan       operations recorded once and run by one call
 *   step       what a compiled program calls for its collectives
 *
 * Every function that returns lk_status sets, on failure, the message of lk_last_error() for the calling thread: it
 * names the operation, its sequence number and the rank that is to blame. After a failure that may have left ranks at
 * different places the group is aborted: later calls return LK_ABORTED at once, on every rank. Counts are in elements,
 * times in nanoseconds. No function blocks beyond its timeout.
 *
 * Groups belong to the process that made them. In a child of fork() their descriptors are closed, calls return
 * LK_INVALID, and to destroy or release does nothing: the parent and the other ranks do not notice.
 */
#ifndef LOWERKIT_COLLECTIVE_H
#define LOWERKIT_COLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lk_status {
  LK_OK = 0,
  LK_INVALID = 1,   /* an argument of this rank is wrong; nothing was sent */
  LK_TIMEOUT = 2,   /* a rank did not arrive in time */
  LK_PEER_LOST = 3, /* a rank's process ended, or its connection did */
  LK_DESYNC = 4,    /* ranks called different operations, or with other shapes or types */
  LK_ABORTED = 5,   /* the group failed earlier, here or on another rank, or abort was called */
  LK_RESOURCES = 6, /* memory, descriptors */
  LK_PROTOCOL = 7,  /* bytes that are not of this protocol */
  LK_PENDING = 8,   /* lk_work_test: not done yet */
  LK_DIED = 9,      /* this rank died, in a simulation: it does nothing any more */
  LK_INTERRUPTED = 10 /* lk_set_interruption's hook ended the wait */
} lk_status;

typedef enum lk_dtype {
  LK_F32 = 0,
  LK_F64 = 1,
  LK_F16 = 2,
  LK_BF16 = 3,
  LK_I8 = 4,
  LK_I16 = 5,
  LK_I32 = 6,
  LK_I64 = 7,
  LK_U8 = 8,
  LK_U16 = 9,
  LK_U32 = 10,
  LK_U64 = 11,
  LK_BOOL = 12
} lk_dtype;

/* LK_AVG divides the sum by the number of ranks; LK_PREMUL_SUM multiplies this rank's input by `factor` first.
 * f16 and bf16 are accumulated in f32 and rounded once per step. LK_BOOL: SUM and MAX are or, PRODUCT and MIN are and.
 */
typedef enum lk_reduction {
  LK_SUM = 0,
  LK_PRODUCT = 1,
  LK_MIN = 2,
  LK_MAX = 3,
  LK_AVG = 4,
  LK_PREMUL_SUM = 5,
  LK_BAND = 6,
  LK_BOR = 7,
  LK_BXOR = 8
} lk_reduction;

typedef enum lk_operation {
  LK_BARRIER = 0,
  LK_BROADCAST = 1,
  LK_REDUCE = 2,
  LK_ALL_REDUCE = 3,
  LK_SCATTER = 4,
  LK_GATHER = 5,
  LK_ALL_GATHER = 6,
  LK_REDUCE_SCATTER = 7,
  LK_ALL_TO_ALL = 8,
  LK_SEND = 9,
  LK_RECEIVE = 10
} lk_operation;

enum { LK_ANY_SOURCE = -1, LK_MAX_DIMS = 8 };

typedef struct lk_group lk_group;
typedef struct lk_work lk_work;
typedef struct lk_plan lk_plan;
typedef struct lk_step lk_step;

/* Where one algorithm gives way to the next, in bytes per rank. Zero in any field: the built-in value. */
typedef struct lk_tuning {
  int64_t one_shot_limit;  /* up to here all_reduce copies the whole input once; above, slices (two-shot) */
  int64_t tile_bytes;      /* a step of the pipelined algorithms */
  int64_t streaming_limit; /* from here on outputs are stored past the caches */
  int64_t spin_nanoseconds;
} lk_tuning;

/* What a group is made of. The descriptors stay the caller's until lk_group_create returns LK_OK; then they are the
 * group's. `local_ranks` are ascending and contain `rank`; `segment_descriptor` (-1: none) is a memfd of
 * lk_segment_bytes() that all of them pass. `connections[r]`: a connected stream socket to rank r: it carries messages
 * if r is not local, and tells of r's death in either case; -1 for the rank itself, or to do without. `processes[r]`: a
 * pidfd of rank r's process, which tells of its death although a child that it forked holds the connection; -1 or null:
 * to do without. */
typedef struct lk_group_config {
  const char *name;
  int32_t rank;
  int32_t size;
  int32_t local_count;
  const int32_t *local_ranks;
  int segment_descriptor;
  const int *connections;
  const int *processes;
  int64_t timeout;        /* of every operation that names none */
  int64_t first_sequence; /* sequence numbers start after it; 0 */
  lk_tuning tuning;
} lk_group_config;

/* Part of one rank in operations whose parts are apart in memory. */
typedef struct lk_part {
  void *data;
  int64_t count;
} lk_part;

/* One operation. Which fields are read:
 *   barrier         none
 *   broadcast       output (in place), count, root
 *   reduce          input, output (root only), count, root, reduction
 *   all_reduce      input, output (may be the same), count, reduction
 *   scatter         parts (root: one for each rank), output, count, root
 *   gather          input, count, parts (root), root
 *   all_gather      input, count, parts (one for each rank; counts may differ between ranks)
 *   reduce_scatter  parts (one for each rank, read only), output, count (of this rank's part), reduction
 *   all_to_all      input_parts (read only), parts
 *   send, receive   input or output, count, root (the peer; LK_ANY_SOURCE to receive), tag
 * Inputs and outputs do not overlap, but that a rank's own part may stay where it is: all_reduce and reduce with input
 * == output, gather and all_gather with input == parts[rank], scatter and reduce_scatter with output == parts[rank].
 * `shape` (dims of it) is compared between ranks and shown in errors; dims 0: only counts are. */
typedef struct lk_call {
  int32_t operation;
  int32_t dtype;
  int32_t reduction;
  int32_t root;
  int64_t count;
  const void *input;
  void *output;
  const lk_part *input_parts;
  const lk_part *parts;
  double factor;
  int64_t tag;
  int64_t timeout; /* 0: the group's */
  int32_t dims;
  int64_t shape[LK_MAX_DIMS];
} lk_call;

/* One line of the flight recorder. */
typedef struct lk_record {
  uint64_t sequence; /* 0: a message (send, receive) */
  int32_t operation;
  int32_t dtype;
  int32_t reduction;
  int32_t root;
  int64_t count;
  int64_t tag;
  int32_t dims;
  int64_t shape[LK_MAX_DIMS];
  int64_t started;    /* wall clock, nanoseconds since 1970 */
  int64_t finished;   /* 0: still running */
  int64_t waited;     /* of that time, spent waiting for others */
  int32_t waited_for; /* the rank that cost the longest single wait; -1 */
  int32_t status;
} lk_record;

const char *lk_last_error(void);
const char *lk_status_name(int32_t status);
int64_t lk_dtype_bytes(int32_t dtype); /* 0: no such type */

/* A hook that calls ask every 20 ms while they wait, and at once where a signal ended their sleep; it runs on the thread
 * that waits, and is asked by the library's own threads as well. Where it returns other than 0 the wait ends with
 * LK_INTERRUPTED: an operation that had begun aborts its group, a work that runs behind its caller goes on. One for the
 * process; null: none. Simulations do not ask it. */
typedef int32_t (*lk_interruption)(void);
void lk_set_interruption(lk_interruption hook);

int64_t lk_segment_bytes(int32_t local_count, int64_t tile_bytes);

/* Maps the segment and checks that all local ranks agree on its layout. The first local rank writes the header. */
lk_status lk_group_create(const lk_group_config *config, lk_group **group);
/* Waits for nothing: unfinished work fails with LK_ABORTED. The other ranks see LK_PEER_LOST where they wait for this
 * one. */
void lk_group_destroy(lk_group *group);
/* Fails everything that runs or will run in the group, on all ranks. Callable from any thread. */
void lk_group_abort(lk_group *group, const char *reason);
/* Whether the group was aborted; `reason` (may be null) receives up to `capacity` bytes with the final zero. */
int32_t lk_group_aborted(lk_group *group, char *reason, size_t capacity);
/* Reads what other ranks have told meanwhile, without an operation of the group: fails where one of them aborted it. */
lk_status lk_group_look(lk_group *group);
/* Fills ranks known to be dead with 1 in `dead` (size entries). */
void lk_group_dead(lk_group *group, uint8_t *dead);
/* Newest last; returns how many records were written. */
int64_t lk_group_records(lk_group *group, lk_record *records, int64_t capacity);

/* Runs to the end in the calling thread, after the group's earlier work. */
lk_status lk_run(lk_group *group, const lk_call *call);
/* Runs behind the caller. Buffers and parts must live until the work is done; the call itself is copied. */
lk_status lk_start(lk_group *group, const lk_call *call, lk_work **work);
lk_status lk_work_test(lk_work *work);
/* 0: the operation's own timeout. LK_TIMEOUT leaves the work running. */
lk_status lk_work_wait(lk_work *work, int64_t timeout);
/* Source rank and bytes of a finished receive. */
void lk_work_received(lk_work *work, int32_t *source, int64_t *bytes);
void lk_work_release(lk_work *work);

/* A plan keeps copies of its calls (and their parts), not of the buffers. */
lk_status lk_plan_create(lk_plan **plan);
lk_status lk_plan_add(lk_plan *plan, lk_group *group, const lk_call *call);
lk_status lk_plan_run(lk_plan *plan);
void lk_plan_release(lk_plan *plan);

/* Collectives as steps of a compiled program. An object serves the runs of one rank, which follow each other; all that
 * a run needs is allocated before it. */
typedef enum lk_step_phase {
  LK_STEP_RUN = 0,   /* from its begin to its end */
  LK_STEP_START = 1, /* begins behind the caller... */
  LK_STEP_DONE = 2   /* ... and this waits for what was started with the same buffers */
} lk_step_phase;

lk_status lk_step_create(lk_group *group, lk_step **step);
/* Ends what runs, as lk_step_settle with a reason does. The group may be gone. */
void lk_step_release(lk_step *step);
/* Whether a run may begin: not in a group that was aborted or destroyed, nor in a child of fork(). */
lk_status lk_step_begin(lk_step *step);
/* The executor's call, whose `step` is the address of an lk_step. buffers: input, output. dims: phase, operation, type,
 * reduction, count, ranks, root. count: elements of the input; of one part where the ranks' parts lie one behind the
 * other, which they do in the output of all_gather, in the input of reduce_scatter and in both of all_to_all. Unlike
 * those of lk_run, broadcast copies the root's input to its output, and reduce fills the outputs of the other ranks with
 * zeros. root: as in lk_call. send writes no output, receive reads no input and fails with LK_DESYNC where fewer elements
 * come. Both match in their order between two ranks. Returns an lk_status: LK_ABORTED where the group was destroyed. The
 * group must not be destroyed meanwhile. */
int64_t lk_step_call(uint64_t step, void *const *buffers, const int64_t *dims);
/* After a run that did not come to its end: returns when nothing that it started reads or writes its buffers any more.
 * With a reason it aborts the group first, if anything runs, and does not fail; without (null) it waits for the other
 * ranks, and fails only with LK_INTERRUPTED. */
lk_status lk_step_settle(lk_step *step, const char *reason);

/* Symmetric arena: memory of every local rank that the others can reach. Operations whose buffers lie in it need no
 * copies. `descriptor` is a memfd of local_count * bytes, passed by all local ranks; it stays the caller's. `own`
 * receives the address of this rank's part. A group has one arena: a further call, made by all local ranks at the same
 * place among their operations, puts another one in its place, and the memory of the earlier one is gone. */
lk_status lk_group_attach_arena(lk_group *group, int descriptor, int64_t bytes, void **own);
/* Lets operations of `group` find their buffers in the arena of `owner`, in which its ranks are too: ranks[r] is the
 * number of rank r there. Until the owner has another arena or is destroyed; then nothing of it may be used here. */
lk_status lk_group_share_arena(lk_group *group, lk_group *owner, const int32_t *ranks);

/* Ranks that are threads of one process, with a network and a clock of their own: for tests and simulation. Time stands
 * still while any rank computes and goes on, to the next event, when all of them wait: the same rules and programs give
 * the same outcomes at the same moments, whatever the machine does. */
typedef struct lk_simulation lk_simulation;

typedef struct lk_simulation_rules {
  uint64_t seed;
  int64_t latency;   /* of each frame */
  int64_t jitter;    /* on top of it: uniform from 0 up to this */
  double overtaking; /* probability that a frame is held up for hold_up more: frames of other keys overtake it */
  int64_t hold_up;
  double loss;            /* probability that a frame never arrives */
  const int64_t *dies_at; /* by rank: the number of the frame as it sends which it dies, from 0 on; -1: never. Null:
                             nobody dies */
  const uint8_t *island;  /* by rank: cut off from those that are not; null: nobody is */
  int64_t cut_at;         /* from the frame of this number of each way between them on */
  int64_t patience;       /* real time: time goes on without a rank that computes for longer */
  double bandwidth;       /* of each way from one rank to another, bytes a second: frames wait for those before them,
                             whichever group's. 0: no limit */
  int32_t held_back;      /* 1: for what a rank sends the rules hold from its lk_simulation_begin on, and frames count
                             from there; until then they arrive at once */
} lk_simulation_rules;

lk_status lk_simulation_create(int32_t size, const lk_simulation_rules *rules, lk_simulation **simulation);
/* Groups hold what they need of it. */
void lk_simulation_release(lk_simulation *simulation);
/* A group of `members` (ranks of the simulation), for the one at `rank` of them. Each member makes it, once for a name.
 * Operations are those of any group; a rank counts as computing from its first group's creation until its last one is
 * destroyed, except in calls that wait. */
lk_status lk_simulation_group(lk_simulation *simulation, const char *name, int32_t size, const int32_t *members,
                              int32_t rank, int64_t timeout, lk_group **group);
/* The clock. */
int64_t lk_simulation_now(const lk_simulation *simulation);
/* The rank computes, or waits, until that moment. */
lk_status lk_simulation_sleep(lk_simulation *simulation, int32_t rank, int64_t until);
/* From now on the rules hold for what the rank sends, where they were held back. */
lk_status lk_simulation_begin(lk_simulation *simulation, int32_t rank);
/* How many frames the rank sent since the rules hold, and of how many bytes, headers included. */
lk_status lk_simulation_sent(const lk_simulation *simulation, int32_t rank, int64_t *frames, int64_t *bytes);
/* Fills the ranks that time ever went on without with 1 in `absent` (size entries). */
void lk_simulation_absent(const lk_simulation *simulation, uint8_t *absent);

#ifdef __cplusplus
}
#endif
#endif
