// Tensors: views of variables as lists of regions, in row-major order. Nothing moves.
#pragma once
#include <poplar/Target.hpp>
#include <algorithm>
#include <tuple>

namespace poplar {
namespace emulator {
struct Region {
  std::size_t variable, begin, end;
  std::size_t size() const { return end - begin; }
};
inline void append(std::vector<Region> &to, Region r) {
  if (r.begin == r.end) return;
  if (!to.empty() && to.back().variable == r.variable && to.back().end == r.begin) to.back().end = r.end;
  else to.push_back(r);
}
} // namespace emulator

class Tensor {
  Type type_ = FLOAT;
  std::vector<std::size_t> shape_;
  std::vector<emulator::Region> regions_;
  bool valid_ = false;

  void append_flat(std::vector<emulator::Region> &to, std::size_t begin, std::size_t end) const {
    std::size_t at = 0;
    for (const auto &r : regions_) {
      std::size_t low = std::max(begin, at), high = std::min(end, at + r.size());
      if (low < high) emulator::append(to, {r.variable, r.begin + low - at, r.begin + high - at});
      at += r.size();
      if (at >= end) break;
    }
  }

public:
  Tensor() = default;
  Tensor(Type type, std::vector<std::size_t> shape, std::vector<emulator::Region> regions)
      : type_(type), shape_(std::move(shape)), regions_(std::move(regions)), valid_(true) {}
  const std::vector<emulator::Region> &regions() const { return regions_; }  // the emulator's own

  bool valid() const { return valid_; }
  const Type &elementType() const { return type_; }
  std::vector<std::size_t> shape() const { return shape_; }
  std::size_t rank() const { return shape_.size(); }
  std::size_t dim(unsigned d) const { return shape_.at(d); }
  std::size_t numElements() const {
    std::size_t n = 1;
    for (auto s : shape_) n *= s;
    return n;
  }
  bool isContiguous() const { return regions_.size() <= 1; }
  bool containsAliases() const {
    auto sorted = regions_;
    std::sort(sorted.begin(), sorted.end(),
              [](auto &a, auto &b) { return std::tie(a.variable, a.begin) < std::tie(b.variable, b.begin); });
    for (std::size_t i = 1; i < sorted.size(); ++i)
      if (sorted[i].variable == sorted[i - 1].variable && sorted[i].begin < sorted[i - 1].end) return true;
    return false;
  }

  Tensor slice(std::size_t begin, std::size_t end, unsigned d = 0) const {
    if (d >= rank() || begin > end || end > shape_[d])
      throw poplar_error("slice [" + std::to_string(begin) + ":" + std::to_string(end) + ") of dimension " +
                         std::to_string(d) + " is out of range");
    std::size_t inner = 1, outer = 1;
    for (unsigned i = 0; i < d; ++i) outer *= shape_[i];
    for (unsigned i = d + 1; i < rank(); ++i) inner *= shape_[i];
    Tensor t(type_, shape_, {});
    t.shape_[d] = end - begin;
    for (std::size_t o = 0; o < outer; ++o)
      append_flat(t.regions_, (o * shape_[d] + begin) * inner, (o * shape_[d] + end) * inner);
    return t;
  }
  Tensor slice(const Interval &i, unsigned d = 0) const { return slice(i.begin(), i.end(), d); }
  Tensor operator[](std::size_t i) const {
    Tensor t = slice(i, i + 1, 0);
    t.shape_.erase(t.shape_.begin());
    return t;
  }
  Tensor reshape(ArrayRef<std::size_t> shape) const {
    Tensor t(type_, std::vector<std::size_t>(shape.begin(), shape.end()), regions_);
    if (t.numElements() != numElements()) throw poplar_error("reshape changes the number of elements");
    return t;
  }
  Tensor flatten() const { return reshape({numElements()}); }
};

inline Tensor concat(ArrayRef<Tensor> parts, unsigned d = 0) {
  if (!parts.size()) throw poplar_error("concat of no tensors");
  if (d != 0) throw poplar_error("the emulator concatenates along dimension 0 only");
  auto shape = parts[0].shape();
  shape.at(0) = 0;
  std::vector<emulator::Region> regions;
  for (const auto &p : parts) {
    if (p.elementType() != parts[0].elementType()) throw type_error("concat of tensors of different types");
    shape[0] += p.dim(0);
    for (const auto &r : p.regions()) emulator::append(regions, r);
  }
  return Tensor(parts[0].elementType(), shape, regions);
}
} // namespace poplar
