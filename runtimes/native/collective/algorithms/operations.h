// Every collective, over messages.
#pragma once

#include <vector>

#include "messenger/messenger.h"
#include "operation.h"

namespace lowerkit::collective {

// Runs the collective of `execution` (any but send and receive) among `ranks`, each of which calls this with the same
// list, in the same order; the messenger's own rank is one of them. Roots are ranks of the group. Parts are one for
// each entry of `ranks`, LK_AVG divides by their number. The call was validated.
//
// Results are the same bits on all ranks, in every run. Throws Failure: what the messenger throws, LK_DESYNC where
// ranks differ about the operation or a part's length, LK_RESOURCES. Buffers of a failed operation hold anything.
void run_over_messages(Messenger &messenger, const std::vector<int> &ranks, Execution &execution);

}  // namespace lowerkit::collective
