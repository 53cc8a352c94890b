// The same flows in SimGrid: rates while all are under way, then the times at which they end.
//
// Arrives: a file of links and flows, and a time at which to look; SimGrid's own options.
// Leaves: on standard output a line for each flow: its rate until that time, and when it ended.
//
// Each flow goes between two hosts of its own, by a route of its own, so that nothing but the given links is shared.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include <simgrid/s4u.hpp>

namespace sg4 = simgrid::s4u;

struct Flow {
  double bytes;
  double limit;
  std::vector<int> links;
};

static void drive(const std::vector<Flow>& flows, double look_s)
{
  std::vector<sg4::CommPtr> comms;
  for (size_t i = 0; i < flows.size(); i++) {
    auto comm = sg4::Comm::sendto_init(sg4::Host::by_name("s" + std::to_string(i)),
                                       sg4::Host::by_name("d" + std::to_string(i)));
    comm->set_payload_size(static_cast<uint64_t>(flows[i].bytes));
    comm->start();
    comms.push_back(comm);
  }
  sg4::this_actor::sleep_for(look_s);
  std::vector<double> rates;
  for (size_t i = 0; i < flows.size(); i++)
    rates.push_back((flows[i].bytes - comms[i]->get_remaining()) / look_s);
  for (auto const& comm : comms)
    comm->wait();
  for (size_t i = 0; i < flows.size(); i++)
    std::printf("%.17g %.17g\n", rates[i], comms[i]->get_finish_time());
}

int main(int argc, char** argv)
{
  sg4::Engine engine(&argc, argv);
  if (argc != 3) {
    std::fprintf(stderr, "usage: rates FILE LOOK_S [SimGrid options]\n");
    return 2;
  }
  std::ifstream in(argv[1]);
  size_t link_count = 0;
  size_t flow_count = 0;
  in >> link_count >> flow_count;
  auto* zone = sg4::create_full_zone("all");
  std::vector<sg4::Link*> links;
  for (size_t i = 0; i < link_count; i++) {
    double bandwidth = 0;
    in >> bandwidth;
    auto* link = zone->create_link("l" + std::to_string(i), bandwidth);
    link->set_latency(0.0)->seal();
    links.push_back(link);
  }
  std::vector<Flow> flows(flow_count);
  for (size_t i = 0; i < flow_count; i++) {
    size_t hops = 0;
    in >> flows[i].bytes >> flows[i].limit >> hops;
    std::vector<sg4::LinkInRoute> route;
    for (size_t h = 0; h < hops; h++) {
      int link = 0;
      in >> link;
      route.emplace_back(links.at(link));
    }
    if (flows[i].limit > 0) {
      // SimGrid 3.32 leaves out the rate of a communication that has no mailbox: a link of the flow's own limits it.
      auto* own = zone->create_link("limit" + std::to_string(i), flows[i].limit);
      own->set_latency(0.0)->seal();
      route.emplace_back(own);
    }
    auto* source = zone->create_host("s" + std::to_string(i), 1e9)->seal();
    auto* target = zone->create_host("d" + std::to_string(i), 1e9)->seal();
    zone->add_route(source->get_netpoint(), target->get_netpoint(), nullptr, nullptr, route, false);
  }
  zone->create_host("driver", 1e9)->seal();
  if (not in) {
    std::fprintf(stderr, "rates: %s ends too early\n", argv[1]);
    return 2;
  }
  zone->seal();
  sg4::Actor::create("driver", sg4::Host::by_name("driver"), drive, flows, std::strtod(argv[2], nullptr));
  engine.run();
  return 0;
}
