// What this CPU can do and the operating system lets us use, under LLVM's names.
#pragma once

#include <string>
#include <vector>

namespace lowerkit {

// Features that are present and usable: the OS saves the registers they need. Sorted.
std::vector<std::string> cpu_features();

// Every name that cpu_features() can return. Sorted.
std::vector<std::string> known_cpu_features();

// Asks Linux for the AMX tile registers of this process (needed once before the first tile instruction; threads
// inherit it). Returns whether tiles may be used.
bool request_amx();

}  // namespace lowerkit
