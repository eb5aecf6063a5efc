// Small vocabulary types of the graph side.
#pragma once
#include <poplar/Vertex.hpp>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace poplar {
struct StringRef : std::string {
  using std::string::string;
  StringRef(const std::string &s) : std::string(s) {}
};

template <class T> class ArrayRef {
  const T *first_ = nullptr;
  std::size_t size_ = 0;

public:
  ArrayRef() = default;
  ArrayRef(const std::vector<T> &v) : first_(v.data()), size_(v.size()) {}
  ArrayRef(std::initializer_list<T> l) : first_(l.begin()), size_(l.size()) {}
  const T *begin() const { return first_; }
  const T *end() const { return first_ + size_; }
  std::size_t size() const { return size_; }
  const T &operator[](std::size_t i) const { return first_[i]; }
};

struct DebugContext {
  std::string name;
  DebugContext() = default;
  DebugContext(const char *s) : name(s) {}
  DebugContext(const std::string &s) : name(s) {}
};

struct OptionFlags : std::map<std::string, std::string> {
  OptionFlags() = default;
  OptionFlags(std::initializer_list<std::pair<const std::string, std::string>> l) : map(l) {}
  void set(StringRef key, StringRef value) { (*this)[key] = value; }
};

struct Type {
  emulator::Element element;
  unsigned size;
  const char *name;
  bool operator==(const Type &o) const { return element == o.element; }
  bool operator!=(const Type &o) const { return element != o.element; }
  std::string toString() const { return name; }
};
inline const Type FLOAT{emulator::Element::FLOAT, 4, "float"}, HALF{emulator::Element::HALF, 2, "half"},
    INT{emulator::Element::INT, 4, "int"}, UNSIGNED_INT{emulator::Element::UNSIGNED_INT, 4, "unsigned int"},
    SHORT{emulator::Element::SHORT, 2, "short"}, UNSIGNED_SHORT{emulator::Element::UNSIGNED_SHORT, 2, "unsigned short"},
    CHAR{emulator::Element::CHAR, 1, "char"}, SIGNED_CHAR{emulator::Element::SIGNED_CHAR, 1, "signed char"},
    UNSIGNED_CHAR{emulator::Element::UNSIGNED_CHAR, 1, "unsigned char"}, BOOL{emulator::Element::BOOL, 1, "bool"};

class Interval {
  std::size_t begin_ = 0, end_ = 0;

public:
  Interval() = default;
  Interval(std::size_t b, std::size_t e) : begin_(b), end_(e) {}
  std::size_t begin() const { return begin_; }
  std::size_t end() const { return end_; }
  std::size_t size() const { return end_ - begin_; }
};
} // namespace poplar
