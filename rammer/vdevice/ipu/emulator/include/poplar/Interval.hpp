#pragma once
#include <poplar/Types.hpp>
