// Messages among ranks: order, matching, sizes, threads, back-pressure, failures.
#include <algorithm>
#include <chrono>
#include <future>
#include <random>

#include "message_ranks.h"

using namespace ranks;

static const std::vector<int64_t> kSizes = {0, 1, 63, 4095, 65535, 65536, 65537, 200001, 1048576, 5000003};

TEST(sizes_arrive_whole_on_every_transport) {
  for (Transport transport : kTransports) {
    World world(3, transport);
    world.run_well([](Messenger &messenger, int rank) {
      for (int64_t size : kSizes)
        for (int shift = 1; shift < 3; ++shift) {
          int to = (rank + shift) % 3, from = (rank + 3 - shift) % 3;
          auto sent = pattern(size, uint64_t(rank * 100 + shift));
          Request request;
          messenger.post_send(request, to, message(shift, size, true, to), sent.data(), size);
          auto got = receive(messenger, from, shift, size);
          messenger.wait(request, soon());
          CHECK(got == pattern(size, uint64_t(from * 100 + shift)));
        }
    });
  }
}

TEST(a_rank_sends_to_itself) {
  World world(1, Transport::sockets);
  world.run_well([](Messenger &messenger, int) {
    for (int64_t size : kSizes) {
      auto sent = pattern(size, 5);
      Request request;
      messenger.post_send(request, 0, message(1, size, true, 0), sent.data(), size);
      CHECK(receive(messenger, 0, 1, size) == sent);
      messenger.wait(request, soon());
    }
  });
}

TEST(messages_of_one_tag_stay_in_order_and_tags_are_apart) {
  for (Transport transport : kTransports) {
    NetworkRules rules;
    rules.jitter = 50000;
    rules.overtaking = 0.3;
    World world(2, transport, {}, rules);
    world.run_well([](Messenger &messenger, int rank) {
      constexpr int kMessages = 60;
      auto size_of = [](int i) { return int64_t(i % 7 == 3 ? 70000 + i : i * 11); };
      if (rank == 0) {
        std::vector<std::vector<uint8_t>> payloads;
        std::deque<Request> requests;
        for (int i = 0; i < kMessages; ++i) payloads.push_back(pattern(size_of(i), uint64_t(i)));
        for (int i = 0; i < kMessages; ++i)
          messenger.post_send(requests.emplace_back(), 1, message(i % 3, size_of(i), true, 1),
                              payloads[size_t(i)].data(), size_of(i));
        for (Request &request : requests) messenger.wait(request, soon());
      } else {
        // The last tag first: the others wait unexpected.
        for (int tag : {2, 0, 1})
          for (int i = tag; i < kMessages; i += 3)
            CHECK(receive(messenger, 0, tag, 80000) == pattern(size_of(i), uint64_t(i)));
      }
    });
  }
}

TEST(any_source_takes_what_comes_and_says_from_whom) {
  for (Transport transport : kTransports) {
    World world(5, transport);
    world.run_well([](Messenger &messenger, int rank) {
      if (rank) {
        for (int i = 0; i < 20; ++i) send(messenger, 0, 9, pattern(rank * 5000 * (i % 4), uint64_t(rank * 1000 + i)));
        return;
      }
      std::vector<int> seen(5);
      for (int i = 0; i < 80; ++i) {
        int source = -1;
        auto got = receive(messenger, LK_ANY_SOURCE, 9, 100000, &source);
        if (source < 1 || source > 4) return check::report(__FILE__, __LINE__, "source " + std::to_string(source));
        int number = seen[size_t(source)]++;
        CHECK(got == pattern(source * 5000 * (number % 4), uint64_t(source * 1000 + number)));
      }
      CHECK(*std::min_element(seen.begin() + 1, seen.end()) == 20);
    });
  }
}

TEST(receives_posted_before_are_served_in_order) {
  World world(2, Transport::sockets);
  world.run_well([](Messenger &messenger, int rank) {
    constexpr int64_t kSize = 300000;
    if (rank == 0) {
      std::vector<uint8_t> first(kSize), second(kSize), third(10);
      Request one, two, three;
      messenger.post_receive(one, 1, message(4, kSize, false, 1), first.data(), kSize, true);
      messenger.post_receive(two, LK_ANY_SOURCE, message(4, kSize, false, -1), second.data(), kSize, true);
      messenger.post_receive(three, 1, message(4, 10, false, 1), third.data(), 10, true);
      send(messenger, 1, 0, {1});
      Request *all[] = {&three, &two, &one};
      messenger.wait(all, 3, soon());
      CHECK(first == pattern(kSize, 1) && second == pattern(kSize, 2) && third == pattern(10, 3));
    } else {
      receive(messenger, 0, 0, 1);
      send(messenger, 0, 4, pattern(kSize, 1));
      send(messenger, 0, 4, pattern(kSize, 2));
      send(messenger, 0, 4, pattern(10, 3));
    }
  });
}

TEST(two_threads_share_a_messenger) {
  for (Transport transport : kTransports) {
    World world(2, transport);
    world.run_well([](Messenger &messenger, int rank) {
      std::vector<std::thread> threads;
      for (int lane = 0; lane < 3; ++lane)
        threads.emplace_back([&messenger, rank, lane] {
          for (int i = 0; i < 100; ++i) {
            int64_t size = i % 10 == 9 ? 150000 : 8 * lane;
            auto own = pattern(size, uint64_t(lane * 1000 + i * 2 + rank));
            Request request;
            messenger.post_send(request, 1 - rank, message(lane, size, true, 1 - rank), own.data(), size);
            auto got = receive(messenger, 1 - rank, lane, 200000);
            messenger.wait(request, soon());
            CHECK(got == pattern(size, uint64_t(lane * 1000 + i * 2 + 1 - rank)));
          }
        });
      for (std::thread &thread : threads) thread.join();
    });
  }
}

TEST(requests_are_given_up_while_another_thread_drives) {
  for (Transport transport : kTransports) {
    World world(2, transport);
    world.run_well([](Messenger &messenger, int rank) {
      constexpr int kMessages = 300;
      if (rank == 1) {
        for (int i = 0; i < kMessages; ++i) send(messenger, 0, i, pattern(100, uint64_t(i)));
        return send(messenger, 0, kMessages, {1});
      }
      std::thread other([&messenger] {
        for (int i = 0; i < kMessages; ++i) {
          std::vector<uint8_t> bytes(100);
          Request request;
          messenger.post_receive(request, 1, message(i, 100, false, 1), bytes.data(), 100, true);
        }
      });
      CHECK(receive(messenger, 1, kMessages, 1)[0] == 1);
      other.join();
    });
  }
}

TEST(unexpected_messages_are_bounded_and_none_is_lost) {
  for (Transport transport : kTransports) {
    MessengerOptions options;
    options.unexpected_bytes = 0;  // the least there is: about one eager message
    World world(2, transport, options);
    world.run_well([](Messenger &messenger, int rank) {
      constexpr int kMessages = 200;  // 12 MB
      if (rank == 0)
        for (int i = 0; i < kMessages; ++i) send(messenger, 1, 1, pattern(60000, uint64_t(i)));
      else {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        for (int i = 0; i < 100; ++i) messenger.progress();
        for (int i = 0; i < kMessages; ++i) CHECK(receive(messenger, 0, 1, 60000) == pattern(60000, uint64_t(i)));
      }
    });
  }
}

TEST(a_full_buffer_of_other_messages_is_named) {
  MessengerOptions options;
  options.unexpected_bytes = 0;
  World world(2, Transport::sockets, options);
  std::promise<void> sent;
  auto sender = std::thread([&] {
    std::vector<std::vector<uint8_t>> payloads(40, pattern(60000, 1));
    std::deque<Request> requests;
    for (auto &payload : payloads)
      world.messengers[0]->post_send(requests.emplace_back(), 1, message(1, 60000, true, 1), payload.data(), 60000);
    sent.set_value();
    uint8_t end;
    Request request;
    world.messengers[0]->post_receive(request, 1, message(3, 1, false, 1), &end, 1, true);
    world.messengers[0]->wait(request, soon());
  });
  uint8_t byte = 0;
  Request request;
  sent.get_future().wait();
  world.messengers[1]->post_receive(request, 0, message(2, 1, false, 0), &byte, 1, true);
  THROWS(LK_TIMEOUT, ({"rank 0 has not sent a message with tag 2 within 0.3 s", "bytes of other messages from rank 0"}),
         [&] { world.messengers[1]->wait(request, Deadline::in(kSecond * 3 / 10)); });
  send(*world.messengers[1], 0, 3, {1});
  sender.join();
}

TEST(a_timeout_names_rank_operation_and_sequence) {
  for (Transport transport : kTransports) {
    World world(3, transport);
    Descriptor descriptor;
    descriptor.operation = LK_ALL_REDUCE;
    descriptor.count = 12;
    Envelope envelope = Envelope::step(descriptor, fingerprint(descriptor), 17, 0, 12);
    float data[12] = {};
    Request request;
    Messenger &messenger = *world.messengers[0];
    messenger.post_receive(request, 2, envelope, data, sizeof data, true);
    Waiting waiting;
    THROWS(LK_TIMEOUT,
           ({"all_reduce #17 (sum, f32 x 12) of group 'world', rank 0", "rank 2 has not sent within 0.05 s"}),
           [&] { messenger.wait(request, Deadline::in(kSecond / 20), &waiting); });
    CHECK(!request.done());
    // It is not over: the message may still come.
    float sent[12] = {1, 2, 3};
    Request late;
    world.messengers[2]->post_send(late, 0, envelope, sent, sizeof sent);
    messenger.wait(request, soon(), &waiting);
    CHECK(data[2] == 3);
    world.messengers[2]->wait(late, soon());
  }
}

static Envelope step(int operation, int dtype, int64_t count, int root, uint64_t sequence, int64_t number = 0,
                     int64_t rows = 0) {
  Descriptor descriptor;
  descriptor.operation = uint8_t(operation);
  descriptor.dtype = uint8_t(dtype);
  descriptor.count = count;
  descriptor.root = root;
  if (rows) {
    descriptor.dims = 2;
    descriptor.shape[0] = rows;
    descriptor.shape[1] = count / rows;
  }
  return Envelope::step(descriptor, fingerprint(descriptor), sequence, number, count);
}

TEST(desynchronised_operations_name_both_sides) {
  struct Case {
    Envelope sent;
    int64_t bytes;
    std::string word;
  };
  const std::vector<Case> cases = {
      {step(LK_BROADCAST, LK_F32, 12, 0, 3), 48, "rank 1 calls broadcast(f32 x 12, root 0) #3"},
      {step(LK_ALL_REDUCE, LK_F32, 13, 0, 3), 52, "rank 1 calls all_reduce(sum, f32 x 13) #3"},
      {step(LK_ALL_REDUCE, LK_I32, 12, 0, 3), 48, "rank 1 calls all_reduce(sum, i32 x 12) #3"},
      {step(LK_ALL_REDUCE, LK_F32, 12, 0, 3, 5, 4), 48, "rank 1 calls it with another shape"},
      {step(LK_BROADCAST, LK_F32, 100000, 0, 3, 7), 400000, "rank 1 calls broadcast(f32 x 100000, root 0) #3"},
  };
  for (Transport transport : kTransports)
    for (bool early : {false, true})
      for (const Case &item : cases) {
        World world(2, transport);
        std::vector<char> data(400000);
        Request receive, sent;
        auto post_send = [&] { world.messengers[1]->post_send(sent, 0, item.sent, data.data(), item.bytes); };
        if (early) {
          post_send();
          for (int i = 0; i < 50; ++i) world.messengers[0]->progress();
        }
        world.messengers[0]->post_receive(receive, 1,
                                          step(LK_ALL_REDUCE, LK_F32, 12, 0, 3, 0, item.sent.descriptor.dims ? 3 : 0),
                                          data.data(), 48, true);
        if (!early) post_send();
        THROWS(LK_DESYNC, ({item.word, "all_reduce #3 (sum, f32 x 12"}),
               [&] { world.messengers[0]->wait(receive, soon()); });
      }
}

TEST(parts_of_other_lengths_are_refused) {
  World world(2, Transport::sockets);
  std::vector<float> data(100);
  Descriptor gather;
  gather.operation = LK_GATHER;
  gather.count = 5;
  Request receive, sent;
  world.messengers[0]->post_receive(receive, 1, Envelope::step(gather, fingerprint(gather), 8, 0, 4), data.data(), 16,
                                    true);
  world.messengers[1]->post_send(sent, 0, Envelope::step(gather, fingerprint(gather), 8, 0, 5), data.data(), 20);
  THROWS(LK_DESYNC, ({"gather #8", "rank 1 sent f32 x 5 (20 bytes) where 4 elements (16 bytes) are expected"}),
         [&] { world.messengers[0]->wait(receive, soon()); });
}

TEST(parts_of_finished_operations_are_refused) {
  World world(2, Transport::sockets);
  std::vector<float> data(12);
  Envelope envelope = step(LK_ALL_REDUCE, LK_F32, 12, 0, 3);
  Request sent, later;
  world.messengers[1]->post_send(sent, 0, envelope, data.data(), 48);
  world.messengers[1]->wait(sent, soon());
  // The kernel may hand over late what was sent. What is behind the part has come: so has the part.
  send(*world.messengers[1], 0, 9, {1});
  receive(*world.messengers[0], 1, 9, 1);
  Descriptor barrier;
  THROWS(LK_DESYNC, ({"barrier #3", "is over, but rank 1 sent a part of all_reduce(sum, f32 x 12) #3"}),
         [&] { world.messengers[0]->finish_operation(3, barrier); });
  world.messengers[1]->post_send(later, 0, step(LK_ALL_REDUCE, LK_F32, 12, 0, 2), data.data(), 48);
  for (const Deadline end = soon(); !world.members[0]->aborted() && !end.passed(monotonic_nanoseconds());)
    world.messengers[0]->progress();
  THROWS(LK_ABORTED,
         ({"barrier #3 of group 'world', rank 0 is over, but rank 1 sent a part of all_reduce(sum, f32 x 12) #2"}),
         [&] { world.members[0]->check(); });
}

// A mean is a sum among hosts: that a rank waits in memory in the mean does not contradict the sum that is over here.
TEST(a_rank_that_waits_in_memory_is_in_no_other_operation) {
  World world(2, Transport::sockets);
  world.run_well([](Messenger &messenger, int rank) {
    Descriptor sum, mean;
    sum.operation = mean.operation = LK_ALL_REDUCE;
    mean.reduction = LK_AVG;
    messenger.finish_operation(1, sum);
    if (rank == 0) messenger.tell_of_waiting(Envelope::hosts(mean, 77, 1), 0);
    if (rank == 0) return send(messenger, 1, 5, pattern(10, 1));
    CHECK(receive(messenger, 0, 5, 10) == pattern(10, 1));
    CHECK(!messenger.membership().aborted());
  });
}

TEST(messages_of_another_type_or_too_long_are_refused) {
  World world(2, Transport::sockets);
  std::vector<char> data(200000);
  auto exchange = [&](const Envelope &sent, int64_t bytes, const Envelope &expected, int64_t capacity, bool exact) {
    Request receive, request;
    world.messengers[0]->post_receive(receive, 1, expected, data.data(), capacity, exact);
    std::vector<char> own(200000);
    world.messengers[1]->post_send(request, 0, sent, own.data(), bytes);
    std::atomic<bool> over{false};
    std::thread other([&] {
      while (!over) world.messengers[1]->progress();
    });
    try {
      world.messengers[0]->wait(receive, soon());
    } catch (...) {
      over = true;
      other.join();
      throw;
    }
    over = true;
    other.join();
    return receive.bytes();
  };
  auto floats = [](int64_t count) { return message(1, count, true, 0, LK_F32); };
  auto ints = [](int64_t count) { return message(1, count, true, 0, LK_I32); };
  CHECK(exchange(floats(3), 12, floats(5), 20, false) == 12);
  CHECK(exchange(floats(30000), 120000, floats(40000), 160000, false) == 120000);
  THROWS(LK_DESYNC, ({"rank 1 sent i32 x 5 with tag 1"}), [&] { exchange(ints(5), 20, floats(5), 20, false); });
  THROWS(LK_DESYNC, ({"rank 1 sent f32 x 6 (24 bytes) where 5"}),
         [&] { exchange(floats(6), 24, floats(5), 20, false); });
  THROWS(LK_DESYNC, ({"rank 1 sent f32 x 3 (12 bytes) where 5"}),
         [&] { exchange(floats(3), 12, floats(5), 20, true); });
  THROWS(LK_DESYNC, ({"rank 1 sent f32 x 30000"}), [&] { exchange(floats(30000), 120000, floats(5), 20, false); });
}

TEST(what_a_lost_rank_had_sent_stays_receivable) {
  for (Transport transport : kTransports) {
    World world(2, transport);
    send(*world.messengers[1], 0, 1, pattern(1000, 1));
    send(*world.messengers[1], 0, 2, pattern(60000, 2));
    world.kill(1);
    Messenger &messenger = *world.messengers[0];
    uint8_t byte;
    Request never;
    messenger.post_receive(never, 1, message(3, 1, false, 1), &byte, 1, true);
    THROWS(LK_PEER_LOST, ({"receive (u8 x 1, from rank 1) of group 'world', rank 0", "the connection to rank 1 ended"}),
           [&] { messenger.wait(never, soon()); });
    CHECK(world.members[0]->dead(1));
    CHECK(receive(messenger, 1, 2, 60000) == pattern(60000, 2));
    CHECK(receive(messenger, 1, 1, 60000) == pattern(1000, 1));
    THROWS(LK_PEER_LOST, ({"rank 1"}), [&] { receive(messenger, 1, 1, 1); });
    THROWS(LK_PEER_LOST, ({"rank 1"}), [&] { receive(messenger, LK_ANY_SOURCE, 1, 1); });
    THROWS(LK_PEER_LOST, ({"rank 1"}), [&] { send(messenger, 1, 1, {1}); });
  }
}

TEST(death_under_way_fails_both_directions_and_spares_others) {
  for (Transport transport : kTransports) {
    if (transport == Transport::simulated) continue;  // takes all parts of a message at once: none is under way
    World world(3, transport);
    std::vector<uint8_t> data(20000000);
    Request sent, received, any;
    Messenger &messenger = *world.messengers[0];
    messenger.post_send(sent, 1, message(1, 20000000, true, 1), data.data(), 20000000);
    messenger.post_receive(received, 1, message(1, 20000000, false, 1), data.data(), 20000000, true);
    uint8_t byte = 0;
    messenger.post_receive(any, LK_ANY_SOURCE, message(5, 1, false, -1), &byte, 1, true);
    {
      std::vector<uint8_t> own(20000000);
      Request request;
      world.messengers[1]->post_send(request, 0, message(1, 20000000, true, 0), own.data(), 20000000);
      for (int i = 0; i < 4; ++i) {
        messenger.progress();
        world.messengers[1]->progress();
      }
      world.messengers[1]->cancel(request);
      world.kill(1);
    }
    THROWS(LK_PEER_LOST, ({"rank 1"}), [&] { messenger.wait(received, soon()); });
    THROWS(LK_PEER_LOST, ({"rank 1"}), [&] { messenger.wait(sent, soon()); });
    CHECK(!any.done());
    send(*world.messengers[2], 0, 5, {7});
    messenger.wait(any, soon());
    CHECK(byte == 7 && any.source() == 2);
  }
}

TEST(cancelled_requests_leave_the_connection_whole) {
  for (Transport transport : kTransports) {
    World world(2, transport);
    Messenger &zero = *world.messengers[0], &one = *world.messengers[1];
    constexpr int64_t kLong = 4000000;
    for (int rounds = 0; rounds < 8; ++rounds) {
      // A long receive is given up in the middle: what comes for it is thrown away.
      auto sent = std::make_unique<std::vector<uint8_t>>(pattern(kLong, 1));
      auto target = std::make_unique<std::vector<uint8_t>>(kLong);
      Request request, received;
      one.post_send(request, 0, message(rounds, kLong, true, 0), sent->data(), kLong);
      zero.post_receive(received, 1, message(rounds, kLong, false, 1), target->data(), kLong, true);
      for (int i = 0; i < rounds; ++i) {
        zero.progress();
        one.progress();
      }
      zero.cancel(received);
      target.reset();
      if (rounds % 2) {  // and its send
        one.cancel(request);
        sent.reset();
      }
      // Short messages are given up before and after they went.
      std::vector<uint8_t> small(5000);
      Request given_up;
      one.post_send(given_up, 0, message(100, 5000, true, 0), small.data(), 5000);
      one.cancel(given_up);
      std::thread other([&] { send(one, 0, 200, pattern(90000, 3)); });
      CHECK(receive(zero, 1, 200, 90000) == pattern(90000, 3));
      other.join();
    }
  }
}

TEST(an_abort_reaches_those_who_wait) {
  for (Transport transport : kTransports) {
    World world(4, transport);
    world.run([](Messenger &messenger, int rank) {
      if (rank == 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        throw Failure(LK_DESYNC, "rank 2 is wrong", 2);
      }
      receive(messenger, (rank + 1) % 3, 1, 1);
    });
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(world.statuses[size_t(rank)] == LK_ABORTED);
      CHECK(world.errors[size_t(rank)].find("rank 2 is wrong") != std::string::npos);
    }
  }
}

TEST(a_membership_aborted_elsewhere_ends_a_wait) {
  World world(2, Transport::sockets);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    world.members[0]->abort(LK_ABORTED, "called off", -1);
    world.messengers[0]->wake();
  });
  THROWS(LK_ABORTED, ({"called off"}), [&] { receive(*world.messengers[0], 1, 1, 1); });
  other.join();
}

TEST(ranks_that_are_not_there_are_refused) {
  World world(2, Transport::sockets);
  THROWS(LK_INVALID, ({"there is no rank 2 in a group of 2"}), [&] { send(*world.messengers[0], 2, 1, {1}); });
  THROWS(LK_INVALID, ({"there is no rank -2"}), [&] { receive(*world.messengers[0], -2, 1, 1); });
}

TEST(the_fate_of_a_frame_depends_on_seed_way_and_number_alone) {
  NetworkRules rules;
  rules.jitter = 1000;
  rules.loss = 0.25;
  rules.overtaking = 0.5;
  SimulatedNetwork one(4, rules), two(4, rules);
  rules.seed = 2;
  SimulatedNetwork other(4, rules);
  int lost = 0, differ = 0;
  for (uint64_t number = 0; number < 1000; ++number) {
    auto fate = one.fate(1, 3, number), same = two.fate(1, 3, number), else_where = other.fate(1, 3, number);
    CHECK(fate.lost == same.lost && fate.delay == same.delay);
    lost += fate.lost;
    differ += fate.delay != else_where.delay;
  }
  CHECK(lost > 200 && lost < 300 && differ > 900);
}

TEST(a_lost_frame_ends_in_a_timeout_or_is_missed) {
  NetworkRules rules;
  rules.loss = 1;
  World silent(2, Transport::simulated, {}, rules);
  send(*silent.messengers[1], 0, 1, {1});
  uint8_t byte;
  Request request;
  silent.messengers[0]->post_receive(request, 1, message(1, 1, false, 1), &byte, 1, true);
  THROWS(LK_TIMEOUT, ({"rank 1 has not sent a message with tag 1 within 0.05 s"}),
         [&] { silent.messengers[0]->wait(request, Deadline::in(kSecond / 20)); });
  // The next of the same tag must not pass for the one that was lost.
  rules.loss = 0.5;
  World leaky(2, Transport::simulated, {}, rules);
  bool lost = false, missed = false;
  for (uint8_t i = 0; i < 50 && !missed; ++i) {
    send(*leaky.messengers[1], 0, 1, {i});
    bool gone = leaky.network.fate(1, 0, i).lost;
    if (lost && !gone) {
      THROWS(LK_PROTOCOL, ({"a frame of rank 1 before this one is missing"}),
             [&] { receive(*leaky.messengers[0], 1, 1, 1); });
      missed = true;
    }
    if (!lost && !gone) CHECK(receive(*leaky.messengers[0], 1, 1, 1)[0] == i);
    lost |= gone;
  }
  CHECK(missed);
}

TEST(a_partition_cuts_ways_from_its_frame_on) {
  NetworkRules rules;
  rules.island = {2};
  rules.cut_at = 3;
  World world(3, Transport::simulated, {}, rules);
  for (uint8_t i = 0; i < 5; ++i) {
    send(*world.messengers[2], 0, i, {i});
    send(*world.messengers[1], 0, i, {i});
  }
  for (uint8_t i = 0; i < 5; ++i) {
    CHECK(receive(*world.messengers[0], 1, i, 1)[0] == i);
    if (i < 3) CHECK(receive(*world.messengers[0], 2, i, 1)[0] == i);
  }
  uint8_t byte;
  Request request;
  world.messengers[0]->post_receive(request, 2, message(3, 1, false, 2), &byte, 1, true);
  THROWS(LK_TIMEOUT, ({"rank 2"}), [&] { world.messengers[0]->wait(request, Deadline::in(kSecond / 50)); });
}

TEST(a_rank_dies_at_its_frame) {
  NetworkRules rules;
  rules.deaths = {{1, 4}};
  World world(3, Transport::simulated, {}, rules);
  world.run([](Messenger &messenger, int rank) {
    for (uint8_t i = 0; i < 10; ++i) {
      if (rank == 1) send(messenger, i % 2 ? 2 : 0, i, {i});
      if (rank == 0 && i % 2 == 0) CHECK(receive(messenger, 1, i, 1)[0] == i);
      if (rank == 2 && i % 2 == 1) CHECK(receive(messenger, 1, i, 1)[0] == i);
    }
  });
  CHECK(world.errors[1] == "rank 1 died in the simulation");
  CHECK(world.statuses[0] == LK_PEER_LOST || world.statuses[0] == LK_ABORTED);
  CHECK(world.statuses[2] == LK_PEER_LOST || world.statuses[2] == LK_ABORTED);
  CHECK(world.statuses[0] == LK_PEER_LOST || world.statuses[2] == LK_PEER_LOST);
}

int main(int count, char **arguments) { return check::run(count > 1 ? arguments[1] : ""); }
