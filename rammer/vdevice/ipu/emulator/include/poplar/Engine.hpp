// Runs control programs step by step, and reports what they would cost.
#pragma once
#include <poplar/Rules.hpp>
#include <iomanip>
#include <ostream>

namespace poplar {
class Engine {
  struct Stream { unsigned char *begin, *end, *at; };
  std::shared_ptr<emulator::GraphData> g_;
  std::vector<std::shared_ptr<emulator::Step>> programs_;
  emulator::Rules rules_;
  std::vector<std::size_t> memory_;
  std::map<std::string, Stream> streams_;
  std::vector<std::unique_ptr<emulator::Cost>> set_costs_;
  std::map<const emulator::Step *, emulator::Cost> copy_costs_;
  std::vector<const emulator::Cost *> executed_;
  std::uint64_t host_bytes_ = 0;
  bool loaded_ = false;
  unsigned runs_ = 0;

  static std::vector<std::shared_ptr<emulator::Step>> steps(ArrayRef<program::Program> programs) {
    std::vector<std::shared_ptr<emulator::Step>> found;
    for (auto &p : programs) found.push_back(p.step());
    return found;
  }

public:
  Engine(const Graph &graph, ArrayRef<program::Program> programs, const OptionFlags &options = {})
      : g_(graph.data()), programs_(steps(programs)), rules_(*g_), memory_(rules_.memory(programs_)),
        set_costs_(g_->sets.size()) {
    for (auto &[key, value] : options)
      if (key.rfind("debug.", 0) && key.rfind("target.", 0) && key.rfind("autoReport.", 0) && key.rfind("opt.", 0))
        throw invalid_option("Unrecognised option '" + key + "'");
    auto allow = options.find("debug.allowOutOfMemory");
    if (allow == options.end() || allow->second != "true") rules_.check_memory(memory_);
  }
  Engine(const Graph &graph, const program::Program &p, const OptionFlags &options = {})
      : Engine(graph, std::vector<program::Program>{p}, options) {}

  void load(const Device &device) {
    if (device.getTarget().getNumTiles() != g_->target.getNumTiles())
      throw poplar_error("The device does not match the target the graph was compiled for");
    loaded_ = true;
  }
  void connectStream(StringRef handle, void *begin, void *end) {
    if (!g_->streams.count(handle)) throw stream_connection_error("There is no stream '" + handle + "'");
    auto *b = static_cast<unsigned char *>(begin);
    streams_[handle] = {b, static_cast<unsigned char *>(end), b};
  }
  void connectStream(StringRef handle, void *p) {
    auto s = g_->streams.find(handle);
    std::size_t n = s == g_->streams.end() ? 0 : s->second.count * s->second.type.size;
    connectStream(handle, p, static_cast<unsigned char *>(p) + n);
  }
  void run(unsigned program = 0, const std::string & = "") {
    if (!loaded_) throw poplar_error("Engine::run: no device is loaded");
    if (program >= programs_.size()) throw control_program_error("There is no program " + std::to_string(program));
    executed_.clear();
    host_bytes_ = 0;
    execute(*programs_[program]);
    ++runs_;
  }

  // Totals of the last run as "key value" lines; with "showExecutionSteps", one "step" line for each step as well.
  void printProfileSummary(std::ostream &out, const OptionFlags &options = {}) {
    emulator::Cost total;
    for (auto *c : executed_) {
      total.compute += c->compute;
      total.busy += c->busy;
      total.exchange += c->exchange;
      total.sync += c->sync;
      total.bytes += c->bytes;
      total.flops += c->flops;
      total.vertices += c->vertices;
      total.supersteps += c->supersteps;
    }
    auto fullest = std::max_element(memory_.begin(), memory_.end());
    const Target &t = g_->target;
    std::uint64_t cycles = total.compute + total.exchange + total.sync;
    out << "tiles " << t.getNumTiles() << "\nclock_hz " << std::uint64_t(t.getTileClockFrequency()) << "\nsupersteps "
        << total.supersteps << "\nvertices " << total.vertices << "\ncycles " << cycles << "\ncompute_cycles " << total.compute
        << "\nexchange_cycles " << total.exchange << "\nsync_cycles " << total.sync << "\nbusy_tile_cycles " << total.busy
        << "\nexchange_bytes " << total.bytes << "\nflops " << total.flops << "\nhost_bytes " << host_bytes_
        << "\npeak_tile_bytes " << *fullest << "\npeak_tile " << fullest - memory_.begin() << "\ntile_bytes "
        << t.getBytesPerTile() << "\n";
    auto show = options.find("showExecutionSteps");
    if (show == options.end() || show->second != "true") return;
    for (auto *c : executed_)
      out << "step " << std::quoted(c->name) << " " << c->compute << " " << c->exchange << " " << c->sync << " " << c->bytes
          << " " << c->vertices << " " << c->tiles << " " << c->busy << "\n";
  }

private:
  template <class F> void each_region(const Tensor &t, F f) {
    for (auto &r : t.regions()) {
      auto &v = g_->variables[r.variable];
      f(v.memory.data() + r.begin * v.type.size, r.size() * v.type.size);
    }
  }
  void gather(const Tensor &t, unsigned char *to) {
    each_region(t, [&](unsigned char *from, std::size_t n) { std::memcpy(to, from, n), to += n; });
  }
  void scatter(const Tensor &t, const unsigned char *from) {
    each_region(t, [&](unsigned char *to, std::size_t n) { std::memcpy(to, from, n), from += n; });
  }
  Stream &stream(const emulator::Step &s, std::size_t bytes) {
    auto found = streams_.find(s.stream.name);
    if (found == streams_.end()) throw stream_connection_error("Stream '" + s.stream.name + "' is not connected");
    auto &x = found->second;
    if (x.at + bytes > x.end) x.at = x.begin;  // buffers are circular
    if (x.at + bytes > x.end) throw stream_connection_error("Stream '" + s.stream.name + "': its buffer is too small");
    host_bytes_ += bytes;
    return x;
  }
  void execute(const emulator::Step &s) {
    using Step = emulator::Step;
    switch (s.kind) {
    case Step::SEQUENCE:
      for (auto &c : s.children) execute(*c);
      break;
    case Step::REPEAT:
      for (unsigned i = 0; i < s.count; ++i) execute(*s.children[0]);
      break;
    case Step::UNDEFINED:
      each_region(s.target, [](unsigned char *at, std::size_t n) { std::memset(at, 0xff, n); });
      break;
    case Step::SYNC: {
      auto &c = copy_costs_[&s];
      c.name = "Sync";
      c.sync = g_->target.getMaxIPUSyncDelay();
      c.supersteps = 1;
      executed_.push_back(&c);
      break;
    }
    case Step::FROM_HOST: {
      std::size_t n = s.target.numElements() * s.target.elementType().size;
      Stream &x = stream(s, n);
      scatter(s.target, x.at);
      x.at += n;
      break;
    }
    case Step::TO_HOST: {
      std::size_t n = s.source.numElements() * s.source.elementType().size;
      Stream &x = stream(s, n);
      gather(s.source, x.at);
      x.at += n;
      break;
    }
    case Step::COPY: {
      std::vector<unsigned char> buffer(s.source.numElements() * s.source.elementType().size);
      gather(s.source, buffer.data());
      scatter(s.target, buffer.data());
      if (!copy_costs_.count(&s)) copy_costs_[&s] = rules_.cost_of_copy(s.source, s.target);
      executed_.push_back(&copy_costs_[&s]);
      break;
    }
    case Step::EXECUTE:
      run_set(s.set.id);
      break;
    }
  }
  // All vertices read, then all compute on buffers of their own, then all write: nothing is seen inside a set.
  void run_set(unsigned set) {
    auto &cost = set_costs_[set];
    if (!cost) cost = std::make_unique<emulator::Cost>(rules_.cost_of_set(set));
    executed_.push_back(cost.get());
    struct Edge { const Tensor *tensor; unsigned char *buffer; };
    struct Block { alignas(16) unsigned char bytes[16]; };
    std::size_t blocks = 0;
    for (unsigned i : rules_.vertices(set)) {
      auto &v = g_->vertices[i];
      blocks += (v.type->object_bytes + 15) / 16;
      for (auto &e : v.edges) blocks += (e.tensor.numElements() * e.tensor.elementType().size + 15) / 16;
    }
    std::unique_ptr<Block[]> arena(new Block[blocks]);
    unsigned char *at = arena ? arena[0].bytes : nullptr;
    auto take = [&](std::size_t n) {
      auto *p = at;
      at += (n + 15) / 16 * 16;
      return p;
    };
    std::vector<Edge> outputs;
    std::vector<std::pair<const emulator::Codelet *, void *>> objects;
    for (unsigned i : rules_.vertices(set)) {
      auto &v = g_->vertices[i];
      void *object = take(v.type->object_bytes);
      v.type->make(object);
      objects.push_back({v.type, object});
      for (auto &[field, value] : v.state) field->bind(object, value.data(), 1);
      for (auto &e : v.edges) {
        std::size_t n = e.tensor.numElements(), bytes = n * e.tensor.elementType().size;
        unsigned char *buffer = take(bytes);
        if (e.field->access == emulator::Access::OUTPUT) std::memset(buffer, 0xff, bytes);
        else gather(e.tensor, buffer);
        if (e.field->access != emulator::Access::INPUT) outputs.push_back({&e.tensor, buffer});
        e.field->bind(object, buffer, n);
      }
    }
    unsigned workers = g_->target.getNumWorkerContexts();
    for (auto &[type, object] : objects) try {
        if (!type->multi) type->run(object, 0);
        else  // workers have no order: every other run has the opposite one
          for (unsigned w = 0; w < workers; ++w) type->run(object, runs_ % 2 ? workers - 1 - w : w);
      } catch (const emulator::Overrun &o) {
        throw runtime_error("Vertex of type '" + std::string(type->name) + "' accesses element " + std::to_string(o.index) +
                            " of a field with " + std::to_string(o.size) + " elements");
      }
    for (auto &e : outputs) scatter(*e.tensor, e.buffer);
  }
};
} // namespace poplar
