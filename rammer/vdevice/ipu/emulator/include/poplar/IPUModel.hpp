#pragma once
#include <poplar/Target.hpp>
