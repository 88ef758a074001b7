// The interface of the reductions, for tests of the messages alone.
#pragma once

#include <cstdint>

namespace lowerkit::collective {

void reduce(void *target, const void *const *sources, const double *factors, int source_count, int64_t count, int dtype,
            int reduction);
void divide(void *data, int64_t divisor, int64_t count, int dtype);

}  // namespace lowerkit::collective
