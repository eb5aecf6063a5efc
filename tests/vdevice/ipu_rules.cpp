// Programs that break one rule of Poplar each: `rule(n, out, size)` runs case n and writes what was thrown.
#include <poplar/DeviceManager.hpp>
#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>
#include <poplar/IPUModel.hpp>
#include <poplar/Program.hpp>
#include <cxxabi.h>
#include <functional>
#include <sstream>
using namespace poplar;
using namespace poplar::program;

class Twice : public Vertex {  // y = 2 x
public:
  Input<Vector<float, VectorLayout::ONE_PTR, 8>> x;
  Output<Vector<float, VectorLayout::ONE_PTR, 8>> y;
  int n;
  bool compute() {
    for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
    return true;
  }
};
class Partial : public MultiVertex {  // leaves every second element alone
public:
  Output<Vector<float>> y;
  bool compute(unsigned worker) {
    for (std::size_t i = 2 * worker; i < y.size(); i += 12) y[i] = float(worker);
    return true;
  }
};
class One : public Vertex {
public:
  Input<float> x;
  InOut<Vector<float>> sum;
  void compute() { sum[0] += *x; }
};
using namespace poplar::emulator;
static const Field twice[] = {field<&Twice::x>("x"), field<&Twice::y>("y"), field<&Twice::n>("n")};
static Registration<Twice, 3> twice_("Twice", 400, twice);
static const Field partial[] = {field<&Partial::y>("y")};
static Registration<Partial, 1> partial_("Partial", 100, partial);
static const Field one[] = {field<&One::x>("x"), field<&One::sum>("sum")};
static Registration<One, 2> one_("One", 100, one);

struct Bench {  // a on tile 0, b on tile 1
  Device device = IPUModel("ipu1").createDevice();
  Graph g{device.getTarget()};
  Tensor a = g.addVariable(FLOAT, {16}, "a"), b = g.addVariable(FLOAT, {16}, "b");
  ComputeSet set = g.addComputeSet("set");
  Bench() {
    g.setTileMapping(a, 0);
    g.setTileMapping(b, 1);
  }
  VertexRef twice(Tensor x, Tensor y, unsigned tile, int n) {
    VertexRef v = g.addVertex(set, "Twice");
    g.connect(v["x"], x);
    g.connect(v["y"], y);
    g.setInitialValue(v["n"], n);
    g.setTileMapping(v, tile);
    g.setPerfEstimate(v, 10);
    return v;
  }
  VertexRef twice(Tensor x, Tensor y, unsigned tile) { return twice(x, y, tile, int(x.numElements())); }
  Tensor other(std::size_t n, unsigned tile) {
    Tensor t = g.addVariable(FLOAT, {n}, "c");
    g.setTileMapping(t, tile);
    return t;
  }
  void run(const Program &p) {
    Engine e(g, p);
    e.load(device);
    e.run(0);
  }
  void run() { run(Execute(set)); }
};

static const std::function<void()> cases[] = {
    [] { Bench x; x.twice(x.a.slice(0, 8), x.b.slice(0, 8), 0); x.twice(x.a.slice(8, 16), x.b.slice(4, 12), 1); x.run(); },
    [] { Bench x; x.twice(x.a, x.b, 0); x.twice(x.b, x.other(16, 2), 1); x.run(); },
    [] { Bench x; x.twice(x.a, x.a, 0); x.run(); },
    [] { Bench x; x.twice(x.a, x.g.addVariable(FLOAT, {16}, "c"), 0); x.run(); },
    [] { Bench x; Tensor c = x.g.addVariable(FLOAT, {16}, "c"); x.g.setTileMapping(c.slice(0, 8), 3); x.twice(x.a, c, 0); x.run(); },
    [] { Bench x; VertexRef v = x.g.addVertex(x.set, "Twice"); x.g.connect(v["x"], x.a); x.g.connect(v["y"], x.b);
         x.g.setInitialValue(v["n"], 16); x.g.setPerfEstimate(v, 1); x.run(); },
    [] { Bench x; VertexRef v = x.g.addVertex(x.set, "Twice"); x.g.connect(v["x"], x.a); x.g.setInitialValue(v["n"], 16);
         x.g.setTileMapping(v, 0); x.g.setPerfEstimate(v, 1); x.run(); },
    [] { Bench x; VertexRef v = x.twice(x.a, x.b, 0); x.g.connect(v["x"], x.a); },
    [] { Bench x; VertexRef v = x.g.addVertex(x.set, "Twice"); x.g.connect(v["x"], x.a); x.g.connect(v["y"], x.b);
         x.g.setTileMapping(v, 0); x.g.setPerfEstimate(v, 1); x.run(); },
    [] { Bench x; x.twice(x.other(70000, 7), x.b, 7, 16); x.run(); },
    [] { Bench x; x.twice(x.other(40000, 7), x.other(40000, 7), 8, 16); x.run(); },
    [] { Bench x; x.g.connect(x.g.addVertex(x.set, "Twice")["z"], x.a); },
    [] { Bench x; x.g.addVertex(x.set, "Thrice"); },
    [] { Bench x; x.g.setTileMapping(x.a, 1216); },
    [] { Bench x; x.g.setTileMapping(x.twice(x.a, x.b, 0), 5000); },
    [] { Bench x; x.twice(x.a.reshape({4, 4}), x.b, 0); },
    [] { Bench x; x.twice(x.g.addVariable(INT, {16}), x.b, 0); },
    [] { Bench x; x.g.connect(x.g.addVertex(x.set, "One")["x"], x.a); },
    [] { Bench x; x.g.setInitialValue(x.g.addVertex(x.set, "Twice")["n"], 16u); },
    [] { Bench x; x.g.setInitialValue(x.g.addVertex(x.set, "Twice")["x"], 16); },
    [] { Bench x; x.g.connect(x.g.addVertex(x.set, "Twice")["n"], x.a); },
    [] { Bench x; x.twice(x.a, x.b, 0, 17); x.run(); },
    [] { Bench x; x.twice(x.a, concat(std::vector<Tensor>{x.b.slice(0, 8), x.b.slice(4, 12)}), 0); },
    [] { Bench x; float v[16] = {}; std::vector<float> values(v, v + 16); Tensor c = x.g.addConstant<float>(FLOAT, {16}, values);
         x.g.setTileMapping(c, 0); x.twice(x.a, c, 0); },
    [] { Bench x; VertexRef v = x.g.addVertex(x.set, "Twice"); x.g.connect(v["x"], x.a); x.g.connect(v["y"], x.b);
         x.g.setInitialValue(v["n"], 16); x.g.setTileMapping(v, 0); x.run(); },
    [] { Bench x; x.run(Copy(x.a, x.b.slice(0, 8))); },
    [] { Bench x; x.run(Copy(x.g.addDeviceToHostFIFO("out", FLOAT, 16), x.a)); },
    [] { Bench x; x.run(Copy(x.g.addHostToDeviceFIFO("in", FLOAT, 8), x.a)); },
    [] { Bench x; x.run(Copy(x.g.addHostToDeviceFIFO("in", FLOAT, 16), x.a)); },
    [] { Bench x; Engine e(x.g, Execute(x.set)); e.load(x.device); e.connectStream("nowhere", nullptr); },
    [] { Bench x; Engine e(x.g, Execute(x.set)); e.run(0); },
    [] { Bench x; Engine e(x.g, Execute(x.set)); e.load(x.device); e.run(1); },
    [] { Bench x; Engine e(x.g, Execute(x.set), OptionFlags{{"debg.instrument", "true"}}); },
    [] { Bench x; x.a.slice(8, 17); },
    [] { Bench x; x.a.reshape({5}); },
    [] { Bench x; x.g.addCodelets("/nonexistent/codelets.gp"); },
    [] { IPUModel model("ipu9"); },
};

extern "C" {
int rule(int n, char *out, int size) {
  std::string text = "nothing";
  try {
    if (std::size_t(n) >= sizeof cases / sizeof *cases) return -1;
    cases[n]();
  } catch (const std::exception &e) {
    text = std::string(abi::__cxa_demangle(typeid(e).name(), nullptr, nullptr, nullptr)) + ": " + e.what();
  }
  std::strncpy(out, text.c_str(), size);
  return 0;
}

// What one vertex that leaves elements of its Output alone shows of them, and what was in the variable before.
// a and its copy on tile 0 leave; then a is undefined, and leaves again. Returns cycles of the copy.
unsigned long undefined_and_copy(float *out) {
  Bench x;
  Tensor here = x.g.addVariable(FLOAT, {16}, "here");
  x.g.setTileMapping(here, 0);
  DataStream in = x.g.addHostToDeviceFIFO("in", FLOAT, 16), copied = x.g.addDeviceToHostFIFO("copied", FLOAT, 16);
  Sequence s;
  s.add(Copy(in, x.a));
  s.add(Copy(x.a, here));
  s.add(Copy(here, copied));
  s.add(WriteUndef(x.a));
  s.add(Copy(x.a, x.g.addDeviceToHostFIFO("gone", FLOAT, 16)));
  x.g.setTileMapping(x.b, 1);
  Engine e(x.g, s);
  e.load(x.device);
  std::vector<float> ones(16, 1);
  e.connectStream("in", ones.data());
  e.connectStream("copied", out);
  e.connectStream("gone", out + 16);
  e.run(0);
  std::ostringstream text;
  e.printProfileSummary(text);
  std::string key;
  unsigned long value = 0, cycles = 0, exchange = 0;
  for (std::istringstream lines(text.str()); lines >> key >> value;) {
    if (key == "cycles") cycles = value;
    if (key == "exchange_bytes") exchange = value;
  }
  return cycles + 1000 * exchange;
}
int partial_output(float *out) {
  Bench x;
  VertexRef v = x.g.addVertex(x.set, "Partial");
  x.g.connect(v["y"], x.a);
  x.g.setTileMapping(v, 0);
  x.g.setPerfEstimate(v, 1);
  Sequence s;
  s.add(Execute(x.set));
  s.add(Copy(x.a, x.g.addDeviceToHostFIFO("out", FLOAT, 16)));
  Engine e(x.g, s);
  e.load(x.device);
  e.connectStream("out", out, out + 16);
  e.run(0);
  return 0;
}

// b = 2 a, then a on tile 0 from b on tile 1, `count` times; the summary as text.
int costs(int count, char *out, int size) {
  Bench x;
  x.twice(x.a, x.b, 1);
  Sequence body, all;
  body.add(Execute(x.set));
  body.add(Copy(x.b, x.a));
  float values[16] = {1};
  all.add(Copy(x.g.addHostToDeviceFIFO("in", FLOAT, 16), x.a));
  all.add(Repeat(unsigned(count), body));
  all.add(Copy(x.a, x.g.addDeviceToHostFIFO("out", FLOAT, 16)));
  Engine e(x.g, all);
  e.load(x.device);
  e.connectStream("in", values, values + 16);
  e.connectStream("out", values, values + 16);
  e.run(0);
  std::ostringstream text;
  e.printProfileSummary(text);
  text << "result " << int(values[0]) << "\n";
  std::strncpy(out, text.str().c_str(), size);
  return 0;
}
}
