// The graph: variables with homes, compute sets of vertices with edges, streams.
#pragma once
#include <poplar/Tensor.hpp>
#include <fstream>
#include <memory>

namespace poplar {
struct ComputeSet {
  unsigned id = 0;
  unsigned getId() const { return id; }
};
struct FieldRef {
  unsigned vertex;
  std::string name;
};
struct VertexRef {
  unsigned id = 0;
  FieldRef operator[](StringRef field) const { return {id, field}; }
};
struct DataStream {
  std::string name;
  std::size_t count = 0;
  Type type = FLOAT;
  bool to_device = true;
  std::string handle() const { return name; }
};
struct VertexPerfEstimate {
  std::uint64_t cycles = 0, flops = 0;
};
enum class CodeletFileType { PreprocessedAsmSource, AsmSource, CSource, CppSource, IrSource, Object, Auto };

namespace emulator {
struct Variable {
  Type type;
  std::string name;
  std::size_t count;
  bool constant = false;
  std::vector<int> tile;  // home of every element; -1 has none
  std::vector<unsigned char> memory;
};
struct Edge {
  const Field *field;
  Tensor tensor;
};
struct VertexNode {
  const Codelet *type;
  unsigned set;
  int tile = -1;
  bool has_estimate = false;
  VertexPerfEstimate estimate;
  std::vector<Edge> edges;
  std::vector<std::pair<const Field *, std::vector<unsigned char>>> state;
};
struct GraphData {
  Target target;
  std::vector<Variable> variables;
  std::vector<std::string> sets;
  std::vector<VertexNode> vertices;
  std::map<std::string, DataStream> streams;
  std::map<std::string, const Codelet *> types;
};
} // namespace emulator

class Graph {
  std::shared_ptr<emulator::GraphData> data_ = std::make_shared<emulator::GraphData>();

  void check(unsigned tile) const {
    if (tile >= data_->target.getNumTiles())
      throw invalid_tile_mapping("Tile " + std::to_string(tile) + " is out of range: the target has " +
                                 std::to_string(data_->target.getNumTiles()) + " tiles");
  }
  Tensor add(const Type &type, ArrayRef<std::size_t> shape, const DebugContext &name) {
    std::vector<std::size_t> dims(shape.begin(), shape.end());
    std::size_t n = 1;
    for (auto s : dims) n *= s;
    data_->variables.push_back({type, name.name, n, false, std::vector<int>(n, -1), {}});
    data_->variables.back().memory.assign(n * type.size, 0xff);  // NaN until it is written
    std::vector<emulator::Region> regions;
    emulator::append(regions, {data_->variables.size() - 1, 0, n});
    return Tensor(type, dims, regions);
  }
  const emulator::Field &field(const FieldRef &f) const {
    const auto &type = *data_->vertices.at(f.vertex).type;
    for (std::size_t i = 0; i < type.num_fields; ++i)
      if (f.name == type.fields[i].name) return type.fields[i];
    throw graph_connection_error("Vertex type '" + std::string(type.name) + "' has no field '" + f.name + "'");
  }

public:
  Graph() = default;
  explicit Graph(const Target &target) {
    data_->target = target;
    for (auto *c = emulator::Codelet::first; c; c = c->next) data_->types[c->name] = c;
  }
  explicit Graph(const Device &device) : Graph(device.getTarget()) {}
  const Target &getTarget() const { return data_->target; }
  const std::shared_ptr<emulator::GraphData> &data() const { return data_; }  // the emulator's own

  // Codelets are linked in; the file must be there all the same.
  bool addCodelets(StringRef file, CodeletFileType = CodeletFileType::Auto, StringRef = "", StringRef = "") {
    if (!std::ifstream(file)) throw graph_object_load_error("Could not open codelet file '" + file + "'");
    return true;
  }
  Tensor addVariable(const Type &type, ArrayRef<std::size_t> shape, const DebugContext &name = {}) {
    return add(type, shape, name);
  }
  template <class T>
  Tensor addConstant(const Type &type, ArrayRef<std::size_t> shape, ArrayRef<T> values, const DebugContext &name = {}) {
    if (sizeof(T) != type.size) throw type_error("addConstant: values do not have type " + type.toString());
    Tensor t = add(type, shape, name);
    auto &v = data_->variables.back();
    if (values.size() != v.count) throw poplar_error("addConstant: wrong number of values");
    std::memcpy(v.memory.data(), values.begin(), v.memory.size());
    v.constant = true;
    return t;
  }
  ComputeSet addComputeSet(const DebugContext &name = {}) {
    data_->sets.push_back(name.name);
    return {unsigned(data_->sets.size() - 1)};
  }
  VertexRef addVertex(ComputeSet set, StringRef type) {
    auto found = data_->types.find(type);
    if (found == data_->types.end()) throw graph_object_creation_error("Unknown vertex type '" + type + "'");
    emulator::VertexNode v{};
    v.type = found->second;
    v.set = set.id;
    v.tile = -1;
    data_->vertices.push_back(std::move(v));
    return {unsigned(data_->vertices.size() - 1)};
  }
  void connect(FieldRef ref, const Tensor &t) {
    const auto &f = field(ref);
    auto &v = data_->vertices[ref.vertex];
    std::string where = "Field " + std::string(v.type->name) + "." + f.name;
    if (f.access == emulator::Access::STATE) throw graph_connection_error(where + " is not an edge");
    if (f.element != t.elementType().element)
      throw type_error(where + " cannot be connected to a tensor of type " + t.elementType().toString());
    if (f.vector ? t.rank() != 1 : t.numElements() != 1)
      throw graph_connection_error(where + " cannot be connected to a tensor of rank " + std::to_string(t.rank()) +
                                   " with " + std::to_string(t.numElements()) + " elements");
    for (const auto &e : v.edges)
      if (e.field == &f) throw graph_connection_error(where + ": multiple edges to a vertex input");
    if (f.access != emulator::Access::INPUT) {
      if (t.containsAliases()) throw graph_connection_error(where + " writes an element twice");
      for (const auto &r : t.regions())
        if (data_->variables[r.variable].constant) throw graph_connection_error(where + " writes to a constant");
    }
    v.edges.push_back({&f, t});
  }
  template <class T> void setInitialValue(FieldRef ref, T value) {
    const auto &f = field(ref);
    auto &v = data_->vertices[ref.vertex];
    if (f.access != emulator::Access::STATE || f.element != emulator::element_of<T>())
      throw type_error("Field " + std::string(v.type->name) + "." + f.name + ": initial value of another type");
    auto *bytes = reinterpret_cast<unsigned char *>(&value);
    v.state.push_back({&f, std::vector<unsigned char>(bytes, bytes + sizeof(T))});
  }
  void setPerfEstimate(const VertexRef &v, std::uint64_t cycles, std::uint64_t flops = 0) {
    data_->vertices[v.id].estimate = {cycles, flops};
    data_->vertices[v.id].has_estimate = true;
  }
  void setTileMapping(VertexRef v, unsigned tile) {
    check(tile);
    data_->vertices[v.id].tile = int(tile);
  }
  void setTileMapping(const Tensor &t, unsigned tile) {
    check(tile);
    for (const auto &r : t.regions()) {
      auto &home = data_->variables[r.variable].tile;
      std::fill(home.begin() + r.begin, home.begin() + r.end, int(tile));
    }
  }
  DataStream addHostToDeviceFIFO(StringRef handle, const Type &type, std::size_t count) {
    return data_->streams[handle] = DataStream{handle, count, type, true};
  }
  DataStream addDeviceToHostFIFO(StringRef handle, const Type &type, std::size_t count) {
    return data_->streams[handle] = DataStream{handle, count, type, false};
  }
};
} // namespace poplar
