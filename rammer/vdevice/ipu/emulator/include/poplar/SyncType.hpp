#pragma once
#include <poplar/Program.hpp>
