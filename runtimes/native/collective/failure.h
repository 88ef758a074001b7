// How a failure travels inside the library: thrown where it is found, turned into a status at the C interface.
#pragma once

#include <stdexcept>
#include <string>

#include "lowerkit_collective.h"

namespace lowerkit::collective {

class Failure : public std::runtime_error {
 public:
  // `rank` is the one to blame, -1 where there is none.
  Failure(lk_status status, const std::string &message, int rank = -1)
      : std::runtime_error(message), status_(status), rank_(rank) {}

  lk_status status() const { return status_; }
  int rank() const { return rank_; }

 private:
  lk_status status_;
  int rank_;
};

}  // namespace lowerkit::collective
