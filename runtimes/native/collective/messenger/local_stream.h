// Bytes between two ranks that share memory, with an eye on whether the other still lives.
#pragma once

#include <memory>

#include "board/board.h"
#include "byte_stream.h"

namespace lowerkit::collective {

// `peer` is an index of the board, which must outlive the stream.
std::unique_ptr<ByteStream> make_local_stream(Board &board, int peer);

}  // namespace lowerkit::collective
