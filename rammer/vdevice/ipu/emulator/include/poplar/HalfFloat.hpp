#pragma once
typedef _Float16 half;
