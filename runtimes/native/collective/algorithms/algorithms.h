// The algorithms behind run_over_messages(). Private to this folder.
//
// n bytes, p ranks. Each algorithm's file says what it costs; the choice is by size:
//   up to kSmallBytes  few messages: trees, recursive doubling, Bruck
//   above              every byte once over each connection: rings and chains, in chunks so that steps overlap
#pragma once

#include <vector>

#include "exchange.h"

namespace lowerkit::collective {

constexpr int64_t kSmallBytes = 32 << 10;

// Part of a position, in elements.
struct Piece {
  void *data;
  int64_t count;
};

// `count` elements in `size` pieces that differ by at most one.
std::vector<Piece> split(void *data, int64_t count, int size, int64_t element);

void dissemination_barrier(Exchange &exchange);

void tree_broadcast(Exchange &exchange);
void chain_broadcast(Exchange &exchange);

void tree_reduce(Exchange &exchange);
void ring_reduce(Exchange &exchange);

void doubling_all_reduce(Exchange &exchange);
void ring_all_reduce(Exchange &exchange);

void gather(Exchange &exchange);
void scatter(Exchange &exchange);
void all_to_all(Exchange &exchange);

void bruck_all_gather(Exchange &exchange);
// Piece i is position i's: the own one is there, the others are filled.
void ring_all_gather(Exchange &exchange, const std::vector<Piece> &pieces);
// `output` becomes the reduction of piece `own` of all positions; the pieces are only read. `output` may be that piece.
void ring_reduce_scatter(Exchange &exchange, const std::vector<Piece> &pieces, void *output);

}  // namespace lowerkit::collective
