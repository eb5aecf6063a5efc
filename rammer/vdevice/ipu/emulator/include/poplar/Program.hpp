// Control programs.
#pragma once
#include <poplar/Graph.hpp>

namespace poplar::emulator {
struct Step {
  enum Kind { SEQUENCE, EXECUTE, COPY, FROM_HOST, TO_HOST, REPEAT, SYNC, UNDEFINED } kind = SEQUENCE;
  std::vector<std::shared_ptr<Step>> children;
  ComputeSet set;
  Tensor source, target;
  DataStream stream;
  unsigned count = 1;
};
} // namespace poplar::emulator

namespace poplar {
enum class SyncType { INTERNAL, EXTERNAL, GLOBAL };
}

namespace poplar::program {
class Program {
protected:
  std::shared_ptr<emulator::Step> step_ = std::make_shared<emulator::Step>();

public:
  const std::shared_ptr<emulator::Step> &step() const { return step_; }  // the emulator's own
};

struct Sequence : Program {
  void add(const Program &p) { step_->children.push_back(p.step()); }
};
struct Execute : Program {
  explicit Execute(ComputeSet set, const DebugContext & = {}) {
    step_->kind = emulator::Step::EXECUTE;
    step_->set = set;
  }
};
struct Repeat : Program {
  Repeat(unsigned count, const Program &body, const DebugContext & = {}) {
    step_->kind = emulator::Step::REPEAT;
    step_->count = count;
    step_->children.push_back(body.step());
  }
};
struct Sync : Program {
  explicit Sync(SyncType, const DebugContext & = {}) { step_->kind = emulator::Step::SYNC; }
};
struct WriteUndef : Program {  // what the tensor holds is no longer wanted
  explicit WriteUndef(const Tensor &t, const DebugContext & = {}) {
    step_->kind = emulator::Step::UNDEFINED;
    step_->target = t;
  }
};
struct Copy : Program {
  Copy(const Tensor &source, const Tensor &target, bool = false, const DebugContext & = {}) {
    if (source.numElements() != target.numElements())
      throw control_program_error("Copy: source and destination have different sizes");
    if (source.elementType() != target.elementType()) throw type_error("Copy: source and destination differ in type");
    if (target.containsAliases()) throw control_program_error("Copy: destination has an element twice");
    step_->kind = emulator::Step::COPY;
    step_->source = source;
    step_->target = target;
  }
  Copy(const DataStream &stream, const Tensor &target, const DebugContext & = {}) {
    stream_step(emulator::Step::FROM_HOST, stream, target);
  }
  Copy(const Tensor &source, const DataStream &stream, const DebugContext & = {}) {
    stream_step(emulator::Step::TO_HOST, stream, source);
  }

private:
  void stream_step(emulator::Step::Kind kind, const DataStream &stream, const Tensor &t) {
    bool in = kind == emulator::Step::FROM_HOST;
    if (stream.to_device != in) throw control_program_error("Copy: stream '" + stream.name + "' has the other direction");
    if (stream.type != t.elementType()) throw type_error("Copy: stream '" + stream.name + "' has another type");
    if (stream.count != t.numElements())
      throw control_program_error("Copy: stream '" + stream.name + "' has another number of elements");
    step_->kind = kind;
    step_->stream = stream;
    (in ? step_->target : step_->source) = t;
  }
};
} // namespace poplar::program
