// Host program of rammer's IPU backend: builds a Poplar graph from a plan's tables, and runs it. It uses Poplar alone.
#include <poplar/DeviceManager.hpp>
#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>
#include <poplar/IPUModel.hpp>
#include <poplar/Program.hpp>
#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
using namespace poplar;
using namespace poplar::program;

namespace {
enum { WEIGHTS, INFERENCE };  // programs

// Reads "name value ..." tables; every number and word is a token.
class Tables {
  std::ifstream in_;

public:
  explicit Tables(const char *path) : in_(path) {
    if (!in_) throw std::runtime_error(std::string("cannot read the plan ") + path);
  }
  std::string word() {
    std::string s;
    if (!(in_ >> s)) throw std::runtime_error("the plan ends too early");
    return s;
  }
  long number() {
    long n;
    if (!(in_ >> n)) throw std::runtime_error("the plan holds no number where one is due");
    return n;
  }
  long section(const char *name) {
    std::string found = word();
    if (found != name) throw std::runtime_error("the plan has section " + found + " where " + name + " is due");
    return number();
  }
};

struct Level { long distance, count; };

struct Edge {
  std::string field;
  bool output;
  long size;  // elements of the argument
  std::vector<Level> levels;
};

struct Scratch {
  std::string field;
  long variable, size;
};

struct Class {
  std::string name;
  unsigned long cycles, flops;
  bool status;
  std::vector<Edge> edges;
  std::vector<std::pair<std::string, long>> values;  // field, and the argument whose first element it is; -1: the rTask
  std::vector<Scratch> scratch;
};

struct Kernel {
  std::vector<long> classes;              // of every rTask; -1 has no vertex
  std::vector<std::vector<long>> starts;  // first element of every argument
};

Type type_of(const std::string &name) {
  static const std::map<std::string, Type> types{
      {"FLOAT", FLOAT}, {"HALF", HALF}, {"INT", INT}, {"UNSIGNED_INT", UNSIGNED_INT}, {"SHORT", SHORT},
      {"UNSIGNED_SHORT", UNSIGNED_SHORT}, {"SIGNED_CHAR", SIGNED_CHAR}, {"UNSIGNED_CHAR", UNSIGNED_CHAR}};
  return types.at(name);
}

// The elements start + sum of digit * distance of an argument, as one vector. Where it hangs over the edge of the
// argument, which vertices never look at, the argument's first elements fill it.
Tensor pieces(const Tensor &argument, long start, const std::vector<Level> &levels) {
  std::vector<long> starts{start};
  for (std::size_t i = 0; i + 1 < levels.size(); ++i) {
    std::vector<long> next;
    for (long s : starts)
      for (long d = 0; d < levels[i].count; ++d) next.push_back(s + d * levels[i].distance);
    starts.swap(next);
  }
  long length = levels.back().count, size = long(argument.numElements());
  std::vector<Tensor> parts;
  auto add = [&](long begin, long end) {
    if (begin < end) parts.push_back(argument.slice(std::size_t(begin), std::size_t(end)));
  };
  for (long s : starts) {
    long low = std::min(std::max(s, 0L), size), high = std::min(std::max(s + length, 0L), size);
    if (low >= high) {
      add(0, length);
      continue;
    }
    add(0, low - s);
    add(low, high);
    add(0, s + length - high);
  }
  if (parts.empty()) return argument.slice(0, 0);
  return parts.size() == 1 ? parts[0] : concat(parts);
}

struct Runtime {
  Device device;
  std::unique_ptr<Engine> engine;
  std::vector<std::string> inputs, outputs, weights;
  std::vector<int> status;
};

Device find_device(const std::string &kind, Tables &tables) {
  tables.section("device");
  std::string version = tables.word();
  long tiles = tables.number(), bytes = tables.number(), clock = tables.number();
  if (kind == "hardware") {
    DeviceManager manager = DeviceManager::createDeviceManager();
    std::vector<Device> devices = manager.getDevices(TargetType::IPU, 1);
    for (Device &d : devices)
      if (d.attach()) return std::move(d);
    throw std::runtime_error("no IPU is free; found: " + std::to_string(devices.size()));
  }
  IPUModel model(version.c_str());
  model.tilesPerIPU = unsigned(tiles);
  model.memoryBytesPerTile = unsigned(bytes);
  model.tileClockFrequency = double(clock);
  return model.createDevice();
}

std::vector<Class> read_classes(Tables &tables) {
  std::vector<Class> classes(tables.section("classes"));
  for (Class &c : classes) {
    c.name = tables.word();
    c.cycles = tables.number();
    c.flops = tables.number();
    c.status = tables.number();
    c.edges.resize(tables.number());
    for (Edge &e : c.edges) {
      e.field = tables.word();
      e.output = tables.number();
      e.size = tables.number();
      e.levels.resize(tables.number());
      for (Level &l : e.levels) {
        l.distance = tables.number();
        l.count = tables.number();
      }
    }
    c.values.resize(tables.number());
    for (auto &v : c.values) {
      v.first = tables.word();
      v.second = tables.number();
    }
    c.scratch.resize(tables.number());
    for (Scratch &s : c.scratch) {
      s.field = tables.word();
      s.variable = tables.number();
      s.size = tables.number();
    }
  }
  return classes;
}

std::vector<Kernel> read_kernels(Tables &tables) {
  std::vector<Kernel> kernels(tables.section("kernels"));
  for (Kernel &k : kernels) {
    long rtasks = tables.number(), arguments = tables.number();
    for (long r = 0; r < rtasks; ++r) {
      k.classes.push_back(tables.number());
      std::vector<long> starts;
      for (long a = 0; a < arguments; ++a) starts.push_back(tables.number());
      k.starts.push_back(starts);
    }
  }
  return kernels;
}

std::unique_ptr<Runtime> build(const char *plan, const char *codelets, const char *kind) {
  std::unique_ptr<Runtime> rt(new Runtime);
  Tables tables(plan);
  rt->device = find_device(kind, tables);
  Graph graph(rt->device.getTarget());
  graph.addCodelets(codelets, CodeletFileType::Auto, "-O3");

  std::vector<Tensor> variables;
  for (long n = tables.section("variables"); n > 0; --n) {
    std::string name = tables.word();
    Type type = type_of(tables.word());
    variables.push_back(graph.addVariable(type, {std::size_t(tables.number())}, name));
  }
  for (long n = tables.section("homes"); n > 0; --n) {  // of elements that no vertex writes
    long v = tables.number(), begin = tables.number(), end = tables.number();
    graph.setTileMapping(variables[v].slice(std::size_t(begin), std::size_t(end)), unsigned(tables.number()));
  }
  std::map<long, std::vector<long>> scratch_of_tile;  // variable -> first element of every tile's scratch
  for (long n = tables.section("scratch"); n > 0; --n) {
    long v = tables.number(), count = tables.number();
    for (long t = 0; t < count; ++t) scratch_of_tile[v].push_back(tables.number());
  }
  std::map<std::tuple<long, long, long>, long> scratch_used;  // (set, tile, variable) -> elements

  std::vector<ComputeSet> sets;
  for (long n = tables.section("sets"); n > 0; --n) sets.push_back(graph.addComputeSet(tables.word()));
  std::vector<Class> classes = read_classes(tables);
  std::vector<Kernel> kernels = read_kernels(tables);

  rt->status.resize(tables.section("status"));
  Tensor status;
  if (!rt->status.empty()) status = graph.addVariable(INT, {rt->status.size()}, "status");
  std::size_t next_status = 0;

  for (long n = tables.section("operators"); n > 0; --n) {
    const Kernel &kernel = kernels[tables.number()];
    std::vector<std::pair<long, long>> arguments(tables.number());
    for (auto &a : arguments) {
      a.first = tables.number();
      a.second = tables.number();
    }
    for (std::size_t r = 0; r < kernel.classes.size(); ++r) {
      long set = tables.number();
      unsigned tile = unsigned(tables.number());
      if (kernel.classes[r] < 0) continue;
      const Class &c = classes[kernel.classes[r]];
      VertexRef v = graph.addVertex(sets[set], c.name);
      for (std::size_t a = 0; a < c.edges.size(); ++a) {
        std::size_t base = std::size_t(arguments[a].second), size = std::size_t(c.edges[a].size);
        Tensor t = pieces(variables[arguments[a].first].slice(base, base + size), kernel.starts[r][a], c.edges[a].levels);
        if (c.edges[a].output) graph.setTileMapping(t, tile);
        graph.connect(v[c.edges[a].field], t);
      }
      for (const Scratch &s : c.scratch) {
        long &used = scratch_used[std::make_tuple(set, long(tile), s.variable)];
        long begin = scratch_of_tile[s.variable][tile] + used;
        graph.connect(v[s.field], variables[s.variable].slice(std::size_t(begin), std::size_t(begin + s.size)));
        used += s.size;
      }
      for (const auto &value : c.values)
        graph.setInitialValue(v[value.first], int(value.second < 0 ? long(r) : kernel.starts[r][value.second]));
      if (c.status) {
        Tensor t = status[next_status++];
        graph.setTileMapping(t, tile);
        graph.connect(v["t_status"], t);
      }
      graph.setTileMapping(v, tile);
      graph.setPerfEstimate(v, c.cycles, c.flops);
    }
  }

  Sequence weights, inference;
  for (long n = tables.section("weights"); n > 0; --n) {
    Tensor t = variables[tables.number()];
    rt->weights.push_back("weight" + std::to_string(rt->weights.size()));
    weights.add(Copy(graph.addHostToDeviceFIFO(rt->weights.back(), t.elementType(), t.numElements()), t));
  }
  auto port = [&](const char *name, std::vector<std::string> &handles) {
    long v = tables.number(), begin = tables.number(), count = tables.number();
    handles.push_back(name + std::to_string(handles.size()));
    return variables[v].slice(std::size_t(begin), std::size_t(begin + count));
  };
  for (long n = tables.section("inputs"); n > 0; --n) {
    Tensor t = port("input", rt->inputs);
    if (t.numElements()) inference.add(Copy(graph.addHostToDeviceFIFO(rt->inputs.back(), t.elementType(), t.numElements()), t));
  }
  std::vector<std::pair<Tensor, DataStream>> leaving;
  for (long n = tables.section("outputs"); n > 0; --n) {
    Tensor t = port("output", rt->outputs);
    if (t.numElements())
      leaving.push_back({t, graph.addDeviceToHostFIFO(rt->outputs.back(), t.elementType(), t.numElements())});
  }
  for (long n = tables.section("steps"); n > 0; --n) inference.add(Execute(sets[tables.number()]));  // ends are barriers
  for (auto &port : leaving) inference.add(Copy(port.first, port.second));
  if (!rt->status.empty()) inference.add(Copy(status, graph.addDeviceToHostFIFO("status", INT, rt->status.size())));

  std::vector<Program> programs{weights, inference};
  OptionFlags options{{"debug.instrument", kind == std::string("hardware") ? "true" : "false"}};
  rt->engine.reset(new Engine(graph, programs, options));
  rt->engine->load(rt->device);
  if (!rt->status.empty()) rt->engine->connectStream("status", rt->status.data(), rt->status.data() + rt->status.size());
  return rt;
}

void connect(Runtime &rt, const std::vector<std::string> &handles, void **buffers, const unsigned long *bytes) {
  for (std::size_t i = 0; i < handles.size(); ++i)
    if (bytes[i]) rt.engine->connectStream(handles[i], buffers[i], static_cast<char *>(buffers[i]) + bytes[i]);
}

// Runs f; an exception becomes its text in `error`, and status 1.
template <class F> int guarded(char *error, unsigned size, F f) {
  try {
    return f();
  } catch (const std::exception &e) {
    std::strncpy(error, e.what(), size - 1);
    error[size - 1] = 0;
    return 1;
  }
}
} // namespace

extern "C" {
void *rammer_create(const char *plan, const char *codelets, const char *kind, char *error, unsigned size) {
  Runtime *made = nullptr;
  guarded(error, size, [&] { return made = build(plan, codelets, kind).release(), 0; });
  return made;
}
int rammer_set_weights(void *handle, void **buffers, const unsigned long *bytes, char *error, unsigned size) {
  Runtime &rt = *static_cast<Runtime *>(handle);
  return guarded(error, size, [&] {
    connect(rt, rt.weights, buffers, bytes);
    rt.engine->run(WEIGHTS);
    return 0;
  });
}
// Status 2: an index that data chose is out of range.
int rammer_run(void *handle, void **inputs, const unsigned long *input_bytes, void **outputs,
               const unsigned long *output_bytes, char *error, unsigned size) {
  Runtime &rt = *static_cast<Runtime *>(handle);
  return guarded(error, size, [&] {
    connect(rt, rt.inputs, inputs, input_bytes);
    connect(rt, rt.outputs, outputs, output_bytes);
    rt.engine->run(INFERENCE);
    for (int s : rt.status)
      if (s) return 2;
    return 0;
  });
}
// The profile of the last run, as far as it fits; returns the length of all of it.
unsigned long rammer_profile(void *handle, char *text, unsigned long size) {
  std::ostringstream out;
  static_cast<Runtime *>(handle)->engine->printProfileSummary(out, OptionFlags{{"showExecutionSteps", "true"}});
  std::string s = out.str();
  std::strncpy(text, s.c_str(), size);
  return s.size();
}
void rammer_destroy(void *handle) { delete static_cast<Runtime *>(handle); }
}
