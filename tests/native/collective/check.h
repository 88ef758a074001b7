// Tests without a framework: TEST(name) { CHECK(...); } and one main(), which runs the tests whose names hold its
// argument. A second one, N, makes long lists of cases short: each N-th of them runs.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "failure.h"

namespace check {

struct Test {
  const char *name;
  void (*run)();
};
inline std::vector<Test> &tests() {
  static std::vector<Test> all;
  return all;
}
inline std::atomic<int> failed{0};

inline void report(const char *file, int line, const std::string &what) {
  ++failed;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

// `body` must throw Failure(status) with a message that holds all of `words`.
template <class Body>
void throws(const char *file, int line, lk_status status, std::vector<std::string> words, Body body) {
  try {
    body();
  } catch (const lowerkit::collective::Failure &failure) {
    if (failure.status() != status)
      report(file, line, "status " + std::to_string(failure.status()) + ": " + failure.what());
    for (const std::string &word : words)
      if (!std::strstr(failure.what(), word.c_str())) report(file, line, "no '" + word + "' in: " + failure.what());
    return;
  }
  report(file, line, "nothing was thrown");
}

inline int every = 1;
// Whether the next case of a long list runs.
inline bool taken() {
  static int turn = 0;
  return turn++ % every == 0;
}

inline int run(const char *filter, const char *thinned = "1") {
  int count = 0;
  every = std::max(1, std::atoi(thinned));
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (const Test &test : tests()) {
    if (!std::strstr(test.name, filter)) continue;
    ++count;
    int before = failed;
    auto start = std::chrono::steady_clock::now();
    test.run();
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%s %s (%.1f s)\n", failed == before ? "passed" : "FAILED", test.name, seconds.count());
  }
  std::printf("%d tests, %d failed checks\n", count, failed.load());
  return failed || count == 0;
}

}  // namespace check

#define TEST(name)                                                                   \
  static void name();                                                                \
  static const int registered_##name = (check::tests().push_back({#name, name}), 0); \
  static void name()
#define CHECK(condition) ((condition) ? void() : check::report(__FILE__, __LINE__, #condition))
#define THROWS(status, words, body) check::throws(__FILE__, __LINE__, status, std::vector<std::string> words, body)
