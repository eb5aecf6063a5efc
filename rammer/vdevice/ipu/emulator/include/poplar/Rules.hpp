// What Poplar refuses before a program runs, and what a program costs: checked and counted when an Engine is made.
#pragma once
#include <poplar/Program.hpp>
#include <set>

namespace poplar::emulator {
inline std::string range(const Region &r) {
  return "[" + std::to_string(r.begin) + ":" + std::to_string(r.end) + ")";
}

// Homes of the elements of a variable, as runs.
struct Run { std::size_t begin, end; int tile; };
using Runs = std::vector<Run>;

inline Runs runs_of(const Variable &v) {
  Runs runs;
  for (std::size_t i = 0; i < v.count;) {
    std::size_t j = i + 1;
    while (j < v.count && v.tile[j] == v.tile[i]) ++j;
    runs.push_back({i, j, v.tile[i]});
    i = j;
  }
  return runs;
}
template <class F> void each_run(const Runs &runs, const Region &r, F f) {
  auto at = std::upper_bound(runs.begin(), runs.end(), r.begin, [](std::size_t b, const Run &x) { return b < x.end; });
  for (; at != runs.end() && at->begin < r.end; ++at)
    f(std::max(r.begin, at->begin), std::min(r.end, at->end), at->tile);
}

// Elements that arrive at, or leave, a tile: each counted once.
class Traffic {
  struct Piece { int tile; std::size_t variable, begin, end; };
  std::vector<Piece> pieces_;

public:
  void add(int tile, std::size_t variable, std::size_t begin, std::size_t end) {
    pieces_.push_back({tile, variable, begin, end});
  }
  std::map<int, std::uint64_t> bytes(const std::vector<Variable> &variables) {
    std::sort(pieces_.begin(), pieces_.end(), [](const Piece &a, const Piece &b) {
      return std::tie(a.tile, a.variable, a.begin) < std::tie(b.tile, b.variable, b.begin);
    });
    std::map<int, std::uint64_t> total;
    const Piece *last = nullptr;
    std::size_t reach = 0;
    for (const auto &p : pieces_) {
      if (!last || last->tile != p.tile || last->variable != p.variable) reach = 0;
      std::size_t from = std::max(reach, p.begin);
      if (from < p.end) total[p.tile] += (p.end - from) * variables[p.variable].type.size;
      reach = std::max(reach, p.end);
      last = &p;
    }
    return total;
  }
};

struct Exchange {
  Traffic received, sent;
  void move(std::size_t variable, std::size_t begin, std::size_t end, int from, int to) {
    if (from == to) return;
    received.add(to, variable, begin, end);
    sent.add(from, variable, begin, end);
  }
};

// What one step costs.
struct Cost {
  std::string name;
  std::uint64_t compute = 0, busy = 0, exchange = 0, sync = 0, bytes = 0, flops = 0;
  unsigned vertices = 0, tiles = 0, supersteps = 0;

  void add(Exchange &x, const GraphData &g) {
    std::uint64_t most = 0, total = 0;
    for (auto &[tile, n] : x.received.bytes(g.variables)) most = std::max(most, n), total += n;
    for (auto &[tile, n] : x.sent.bytes(g.variables)) most = std::max(most, n);
    if (!total) return;
    unsigned rate = g.target.getExchangeBytesPerCycle();
    exchange += Target::exchangeSetupCycles + (most + rate - 1) / rate;
    sync += g.target.getMaxIPUSyncDelay();
    bytes += total;
    ++supersteps;
  }
};

class Rules {
  GraphData &g_;
  std::vector<Runs> homes_;
  std::vector<std::vector<unsigned>> by_set_;
  std::vector<std::map<int, std::uint64_t>> buffers_;  // per set: bytes of edges that are copied to their vertex's tile

  static std::string name(const VertexNode &v, const Field &f) {
    return "Field " + std::string(v.type->name) + "." + f.name;
  }

public:
  explicit Rules(GraphData &g) : g_(g), by_set_(g.sets.size()), buffers_(g.sets.size()) {
    for (unsigned i = 0; i < g.vertices.size(); ++i) by_set_[g.vertices[i].set].push_back(i);
    for (auto &v : g.variables) {
      homes_.push_back(runs_of(v));
      for (auto &run : homes_.back())
        if (run.tile < 0)
          throw invalid_tile_mapping("Tile mapping of variable '" + v.name + "' is not complete: elements [" +
                                     std::to_string(run.begin) + ":" + std::to_string(run.end) + ") have no tile");
    }
    for (auto &v : g.vertices) check(v);
    for (unsigned s = 0; s < g.sets.size(); ++s) check_set(s);
  }

  const std::vector<unsigned> &vertices(unsigned set) const { return by_set_[set]; }

  void check(const VertexNode &v) const {
    std::string type = v.type->name;
    if (v.tile < 0) throw invalid_tile_mapping("Vertex of type '" + type + "' in compute set '" + g_.sets[v.set] + "' has no tile");
    if (!v.has_estimate && g_.target.getTargetType() == TargetType::IPU_MODEL)
      throw poplar_error("Vertex of type '" + type + "' has no performance estimate: the IPU Model needs one");
    for (std::size_t i = 0; i < v.type->num_fields; ++i) {
      const Field *f = &v.type->fields[i];
      bool found = f->access == Access::STATE
                       ? std::any_of(v.state.begin(), v.state.end(), [&](auto &s) { return s.first == f; })
                       : std::any_of(v.edges.begin(), v.edges.end(), [&](auto &e) { return e.field == f; });
      if (!found && f->access == Access::STATE) throw graph_connection_error(name(v, *f) + " has no initial value");
      if (!found) throw graph_connection_error(name(v, *f) + ": no edges to a vertex input");
    }
  }

  // One writer of an element, and no reader beside it; buffers of the edges.
  void check_set(unsigned set) {
    struct Write { std::size_t variable, begin, end; unsigned vertex; const Field *field; };
    std::vector<Write> writes;
    auto less = [](const Write &a, const Write &b) { return std::tie(a.variable, a.begin) < std::tie(b.variable, b.begin); };
    for (unsigned i : by_set_[set]) {
      auto &v = g_.vertices[i];
      for (auto &e : v.edges) {
        bool local = e.tensor.regions().size() <= 1;
        for (auto &r : e.tensor.regions()) {
          each_run(homes_[r.variable], r, [&](std::size_t, std::size_t, int tile) { local = local && tile == v.tile; });
          if (e.field->access != Access::INPUT) writes.push_back({r.variable, r.begin, r.end, i, e.field});
        }
        if (!local) buffers_[set][v.tile] += (e.tensor.numElements() * e.tensor.elementType().size + 7) / 8 * 8;
      }
    }
    std::sort(writes.begin(), writes.end(), less);
    auto refuse = [&](const VertexNode &v, const Field &f, const char *what, std::size_t variable, const Region &r) {
      throw graph_cycle_error(name(v, f) + " " + what + " elements " + range(r) + " of variable '" +
                              g_.variables[variable].name + "' that are written to elsewhere in same compute set");
    };
    for (std::size_t i = 1; i < writes.size(); ++i) {
      auto &w = writes[i];
      if (w.variable == writes[i - 1].variable && w.begin < writes[i - 1].end)
        refuse(g_.vertices[w.vertex], *w.field, "writes to", w.variable, {w.variable, w.begin, w.end});
    }
    for (unsigned i : by_set_[set])
      for (auto &e : g_.vertices[i].edges)
        if (e.field->access == Access::INPUT)
          for (auto &r : e.tensor.regions()) {
            auto at = std::partition_point(writes.begin(), writes.end(), [&](const Write &w) {
              return std::tie(w.variable, w.end) <= std::tie(r.variable, r.begin);
            });
            if (at != writes.end() && at->variable == r.variable && at->begin < r.end)
              refuse(g_.vertices[i], *e.field, "reads", r.variable, r);
          }
  }

  Cost cost_of_set(unsigned set) const {
    Cost c;
    c.name = g_.sets[set];
    Exchange before, after;
    std::map<int, std::uint64_t> whole;                // cycles of vertices that use all workers
    std::map<int, std::vector<std::uint64_t>> workers;  // the others, dealt to the worker that is free first
    unsigned count = g_.target.getNumWorkerContexts();
    for (unsigned i : by_set_[set]) {
      auto &v = g_.vertices[i];
      for (auto &e : v.edges)
        for (auto &r : e.tensor.regions())
          each_run(homes_[r.variable], r, [&](std::size_t b, std::size_t end, int tile) {
            if (e.field->access != Access::OUTPUT) before.move(r.variable, b, end, tile, v.tile);
            if (e.field->access != Access::INPUT) after.move(r.variable, b, end, v.tile, tile);
          });
      auto &free = workers[v.tile];
      free.resize(count);
      if (v.type->multi) whole[v.tile] += v.estimate.cycles;
      else *std::min_element(free.begin(), free.end()) += v.estimate.cycles;
      c.flops += v.estimate.flops;
      ++c.vertices;
    }
    for (auto &[tile, free] : workers) {
      std::uint64_t cycles = whole[tile] + count * *std::max_element(free.begin(), free.end());
      c.compute = std::max(c.compute, cycles);
      c.busy += cycles;
      ++c.tiles;
    }
    c.add(before, g_);
    c.add(after, g_);
    return c;
  }

  Cost cost_of_copy(const Tensor &source, const Tensor &target) const {
    struct Piece { std::size_t variable, begin, end; int tile; };
    auto split = [&](const Tensor &t) {
      std::vector<Piece> pieces;
      for (auto &r : t.regions())
        each_run(homes_[r.variable], r, [&](std::size_t b, std::size_t e, int tile) { pieces.push_back({r.variable, b, e, tile}); });
      return pieces;
    };
    Exchange x;
    std::map<int, std::uint64_t> within;  // bytes that stay on their tile
    auto from = split(source), to = split(target);
    for (std::size_t i = 0, j = 0; i < from.size() && j < to.size();) {
      std::size_t n = std::min(from[i].end - from[i].begin, to[j].end - to[j].begin);
      x.move(from[i].variable, from[i].begin, from[i].begin + n, from[i].tile, to[j].tile);
      if (from[i].tile == to[j].tile) within[to[j].tile] += n * source.elementType().size;
      if ((from[i].begin += n) == from[i].end) ++i;
      if ((to[j].begin += n) == to[j].end) ++j;
    }
    Cost c;
    c.name = "Copy";
    unsigned rate = g_.target.getMemcpyBytesPerCycle();
    for (auto &[tile, bytes] : within) {
      std::uint64_t cycles = (bytes + rate - 1) / rate;
      c.compute = std::max(c.compute, cycles);
      c.busy += cycles;
      ++c.tiles;
    }
    c.add(x, g_);
    return c;
  }

  // Bytes of every tile at its worst moment. Variables of one program live from their first write to their last use;
  // those of several programs, and those read before they are written, always.
  std::vector<std::size_t> memory(const std::vector<std::shared_ptr<Step>> &programs) const {
    struct Life { int program = -1; bool always = false, written = false; std::size_t first = 0, last = 0; };
    std::vector<Life> lives(g_.variables.size());
    std::vector<std::pair<std::size_t, unsigned>> executions;
    std::size_t now = 0;
    auto use = [&](const Tensor &t, int program, bool write) {
      for (auto &r : t.regions()) {
        auto &life = lives[r.variable];
        if (life.program < 0) life.program = program, life.first = now;
        if (life.program != program || (!write && !life.written)) life.always = true;
        life.written = life.written || write;
        life.last = now;
      }
    };
    auto walk = [&](auto &self, const Step &s, int program) -> void {
      std::size_t begin = now++;
      switch (s.kind) {
      case Step::EXECUTE:
        executions.push_back({now, s.set.id});
        for (unsigned i : by_set_[s.set.id])  // reads come first
          for (auto &e : g_.vertices[i].edges)
            if (e.field->access != Access::OUTPUT) use(e.tensor, program, false);
        for (unsigned i : by_set_[s.set.id])
          for (auto &e : g_.vertices[i].edges)
            if (e.field->access != Access::INPUT) use(e.tensor, program, true);
        break;
      case Step::COPY: use(s.source, program, false), use(s.target, program, true); break;
      case Step::UNDEFINED:
      case Step::FROM_HOST: use(s.target, program, true); break;
      case Step::TO_HOST: use(s.source, program, false); break;
      default: for (auto &c : s.children) self(self, *c, program);
      }
      if (s.kind == Step::REPEAT)  // what a loop touches lives through all of it
        for (auto &life : lives)
          if (life.program == program && life.last >= begin) life.last = now, life.first = std::min(life.first, begin);
    };
    for (unsigned p = 0; p < programs.size(); ++p) walk(walk, *programs[p], int(p));

    std::size_t tiles = g_.target.getNumTiles();
    std::vector<std::size_t> fixed(tiles), peak(tiles);
    std::vector<std::vector<std::pair<std::size_t, std::int64_t>>> events(tiles);
    for (std::size_t i = 0; i < lives.size(); ++i)
      for (auto &run : homes_[i]) {
        std::size_t n = (run.end - run.begin) * g_.variables[i].type.size;
        if (lives[i].program < 0) continue;  // never used: the compiler drops it
        if (lives[i].always || g_.variables[i].constant) fixed[run.tile] += n;
        else {
          events[run.tile].push_back({lives[i].first, std::int64_t(n)});
          events[run.tile].push_back({lives[i].last + 1, -std::int64_t(n)});
        }
      }
    for (auto &[when, set] : executions)
      for (auto &[tile, n] : buffers_[set]) {
        events[tile].push_back({when, std::int64_t(n)});
        events[tile].push_back({when + 1, -std::int64_t(n)});
      }
    std::set<std::pair<int, const Codelet *>> code;
    for (auto &v : g_.vertices) {
      if (code.insert({v.tile, v.type}).second) fixed[v.tile] += v.type->code_bytes;
      for (std::size_t i = 0; i < v.type->num_fields; ++i) fixed[v.tile] += v.type->fields[i].state_bytes;
    }
    for (std::size_t t = 0; t < tiles; ++t) {
      std::sort(events[t].begin(), events[t].end());
      std::int64_t live = 0, most = 0;
      for (auto &[when, n] : events[t]) most = std::max(most, live += n);
      peak[t] = fixed[t] + std::size_t(most);
    }
    return peak;
  }

  void check_memory(const std::vector<std::size_t> &bytes) const {
    unsigned limit = g_.target.getBytesPerTile();
    for (std::size_t t = 0; t < bytes.size(); ++t)
      if (bytes[t] > limit)
        throw graph_memory_allocation_error("Out of memory on tile " + std::to_string(t) + ": " + std::to_string(bytes[t]) +
                                            " bytes used but tiles only have " + std::to_string(limit) + " bytes of memory");
  }
};
} // namespace poplar::emulator
