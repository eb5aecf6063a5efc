// Emulation of the codelet side of Poplar, and of the field tables that popc extracts from codelets. No containers, so
// that codelets compile in no time.
#pragma once
#ifdef __IPU__
#error "these headers emulate Poplar on the host; build for the device with the SDK's own"
#endif
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include "Binary16.hpp"

namespace poplar {
enum class VectorLayout { SPAN, SHORT_SPAN, ONE_PTR };
template <class T, VectorLayout L = VectorLayout::SPAN, unsigned MinAlign = alignof(T), bool Interleaved = false>
struct Vector;

struct Vertex {};
struct MultiVertex {
  static constexpr unsigned numWorkers() { return 6; }
};
} // namespace poplar

namespace poplar::emulator {
struct Overrun { std::size_t index, size; };  // thrown by a codelet that leaves its field

template <class T, bool Writable> struct ScalarEdge {
  using Ref = std::conditional_t<Writable, T &, const T &>;
  T *at = nullptr;
  operator Ref() const { return *at; }
  Ref operator*() const { return *at; }
};

template <class T, VectorLayout L, bool Writable> struct VectorEdge {
  using Ref = std::conditional_t<Writable, T &, const T &>;
  using Pointer = std::conditional_t<Writable, T *, const T *>;
  T *at = nullptr;
  std::size_t count = 0;  // known here; a codelet with ONE_PTR knows only the pointer
  Ref operator[](std::size_t i) const {
    if (i >= count) throw Overrun{i, count};
    return at[i];
  }
  static constexpr bool sized = L != VectorLayout::ONE_PTR;
  template <bool S = sized, std::enable_if_t<S, int> = 0> std::size_t size() const { return count; }
  template <bool S = sized, std::enable_if_t<S, int> = 0> Pointer begin() const { return at; }
  template <bool S = sized, std::enable_if_t<S, int> = 0> Pointer end() const { return at + count; }
};
} // namespace poplar::emulator

namespace poplar {
template <class T> struct Input : emulator::ScalarEdge<T, false> {};
template <class T> struct Output : emulator::ScalarEdge<T, true> {};
template <class T> struct InOut : emulator::ScalarEdge<T, true> {};
template <class T, VectorLayout L, unsigned A, bool I>
struct Input<Vector<T, L, A, I>> : emulator::VectorEdge<T, L, false> {};
template <class T, VectorLayout L, unsigned A, bool I>
struct Output<Vector<T, L, A, I>> : emulator::VectorEdge<T, L, true> {};
template <class T, VectorLayout L, unsigned A, bool I>
struct InOut<Vector<T, L, A, I>> : emulator::VectorEdge<T, L, true> {};
} // namespace poplar

namespace poplar::emulator {
enum class Access { STATE, INPUT, OUTPUT, INOUT };
enum class Element { FLOAT, HALF, INT, UNSIGNED_INT, SHORT, UNSIGNED_SHORT, CHAR, SIGNED_CHAR, UNSIGNED_CHAR, BOOL, COUNT };

template <class T> constexpr Element element_of() {
  if constexpr (std::is_same_v<T, float>) return Element::FLOAT;
  else if constexpr (std::is_same_v<T, Binary16>) return Element::HALF;
  else if constexpr (std::is_same_v<T, int>) return Element::INT;
  else if constexpr (std::is_same_v<T, unsigned>) return Element::UNSIGNED_INT;
  else if constexpr (std::is_same_v<T, short>) return Element::SHORT;
  else if constexpr (std::is_same_v<T, unsigned short>) return Element::UNSIGNED_SHORT;
  else if constexpr (std::is_same_v<T, char>) return Element::CHAR;
  else if constexpr (std::is_same_v<T, signed char>) return Element::SIGNED_CHAR;
  else if constexpr (std::is_same_v<T, unsigned char>) return Element::UNSIGNED_CHAR;
  else if constexpr (std::is_same_v<T, bool>) return Element::BOOL;
  else static_assert(sizeof(T) == 0, "unsupported field type");
}

// A field of a codelet; `bind` points an edge at its buffer, or copies the value of a state field into it.
struct Field {
  const char *name;
  Access access;
  Element element;
  bool vector;
  unsigned state_bytes;  // in the vertex state on the tile, where pointers have 32 bits
  void (*bind)(void *vertex, void *data, std::size_t count);
};

template <class F> struct FieldType {
  static constexpr Access access = Access::STATE;
  static constexpr Element element = element_of<F>();
  static constexpr bool vector = false;
  static constexpr unsigned state_bytes = sizeof(F);
  static void bind(F &field, void *data, std::size_t) { std::memcpy(&field, data, sizeof(F)); }
};
template <class E, class T, Access A> struct ScalarType {
  static constexpr Access access = A;
  static constexpr Element element = element_of<T>();
  static constexpr bool vector = false;
  static constexpr unsigned state_bytes = 4;
  static void bind(E &field, void *data, std::size_t) { field.at = static_cast<T *>(data); }
};
template <class E, class T, VectorLayout L, Access A> struct VectorType {
  static constexpr Access access = A;
  static constexpr Element element = element_of<T>();
  static constexpr bool vector = true;
  static constexpr unsigned state_bytes = L == VectorLayout::SPAN ? 8 : 4;
  static void bind(E &field, void *data, std::size_t count) {
    field.at = static_cast<T *>(data);
    field.count = count;
  }
};
template <class T> struct FieldType<Input<T>> : ScalarType<Input<T>, T, Access::INPUT> {};
template <class T> struct FieldType<Output<T>> : ScalarType<Output<T>, T, Access::OUTPUT> {};
template <class T> struct FieldType<InOut<T>> : ScalarType<InOut<T>, T, Access::INOUT> {};
template <class T, VectorLayout L, unsigned A, bool I>
struct FieldType<Input<Vector<T, L, A, I>>> : VectorType<Input<Vector<T, L, A, I>>, T, L, Access::INPUT> {};
template <class T, VectorLayout L, unsigned A, bool I>
struct FieldType<Output<Vector<T, L, A, I>>> : VectorType<Output<Vector<T, L, A, I>>, T, L, Access::OUTPUT> {};
template <class T, VectorLayout L, unsigned A, bool I>
struct FieldType<InOut<Vector<T, L, A, I>>> : VectorType<InOut<Vector<T, L, A, I>>, T, L, Access::INOUT> {};

template <auto Member> struct MemberType;
template <class C, class F, F C::*Member> struct MemberType<Member> {
  using Type = FieldType<F>;
  static void bind(void *vertex, void *data, std::size_t count) {
    Type::bind(static_cast<C *>(vertex)->*Member, data, count);
  }
};

template <auto Member> Field field(const char *name) {
  using M = MemberType<Member>;
  using T = typename M::Type;
  return {name, T::access, T::element, T::vector, T::state_bytes, M::bind};
}

// A vertex type. Registrations link themselves into a list when the library is loaded.
struct Codelet {
  const char *name;
  bool multi;
  unsigned code_bytes, object_bytes;
  const Field *fields;
  std::size_t num_fields;
  void (*make)(void *memory);
  void (*run)(void *vertex, unsigned worker);
  const Codelet *next = nullptr;
  static inline const Codelet *first = nullptr;
};

template <class V, std::size_t N> struct Registration {
  Codelet codelet;
  Registration(const char *name, unsigned code_bytes, const Field (&fields)[N])
      : codelet{name, std::is_base_of_v<MultiVertex, V>, code_bytes, sizeof(V), fields, N, make, run, Codelet::first} {
    static_assert(alignof(V) <= 16 && std::is_trivially_destructible_v<V>, "a codelet holds fields only");
    Codelet::first = &codelet;
  }
  static void make(void *memory) { new (memory) V(); }
  static void run(void *vertex, unsigned worker) {
    V &v = *static_cast<V *>(vertex);
    if constexpr (std::is_base_of_v<MultiVertex, V>) v.compute(worker);
    else v.compute();
  }
};
} // namespace poplar::emulator
