#pragma once
#include "Binary16.hpp"
typedef poplar::emulator::Binary16 half;
