// Element-wise reductions over several sources: the arithmetic of every collective that reduces.
#pragma once

#include <cstdint>

namespace lowerkit::collective {

// target[i] = sources[0][i] o sources[1][i] o ..., from left to right, so that who computes does not change the bits.
// f16 and bf16 accumulate in f32 and are rounded once. `target` may be one of the sources, or overlap none.
// `factors` (may be null; floats only) multiply the sources; LK_AVG and LK_PREMUL_SUM count as LK_SUM here. One source:
// a copy.
void reduce(void *target, const void *const *sources, const double *factors, int source_count, int64_t count, int dtype,
            int reduction);

// data[i] = data[i] * factor, in f32 for f16 and bf16. Floats only.
void scale(void *data, double factor, int64_t count, int dtype);

// data[i] = data[i] / divisor; integers truncate towards zero. LK_AVG.
void divide(void *data, int64_t divisor, int64_t count, int dtype);

}  // namespace lowerkit::collective
