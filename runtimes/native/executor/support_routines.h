// The functions outside the code image that compiled kernels may call: the C math library and the conversions between
// float types that LLVM leaves to a support library.
#pragma once

#include <string>
#include <vector>

namespace lowerkit {

// Returns the address of a routine, or null where the name is unknown.
void *support_routine(const std::string &name);

// All names, sorted: what the linker of the compiler may import.
std::vector<std::string> support_routine_names();

}  // namespace lowerkit
