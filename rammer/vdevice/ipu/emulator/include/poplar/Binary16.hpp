// The compiler's half float. g++ before 13 has _Float16 for x86-64 but not for aarch64, where its name is another.
#pragma once
namespace poplar::emulator {
#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
typedef __fp16 Binary16;
#else
typedef _Float16 Binary16;
#endif
} // namespace poplar::emulator
