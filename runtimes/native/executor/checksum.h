// CRC-32 (the one of zip) at memory speed, so that every load can check all weights.
//
// Vocabulary: a polynomial over GF(2) is held bit-reflected, as zip does. Steps: split the data into chunks, one task
// each; fold a chunk 64 bytes at a time with carry-less multiplication (Gopal et al., "Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ", Intel 2009); combine the chunks by multiplying with x^(8 * length).
// Bytes moved: each byte is read once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thread_pool.h"

namespace lowerkit {

// The CRC-32 of `size` bytes, as zlib.crc32 gives it.
uint32_t crc32(const uint8_t *data, size_t size, ThreadPool &pool);

}  // namespace lowerkit
