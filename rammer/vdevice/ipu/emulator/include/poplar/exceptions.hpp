// The exceptions of Poplar that an rProgram can meet, by their real names.
#pragma once
#include <stdexcept>
#include <string>

namespace poplar {
struct poplar_error : std::runtime_error { using std::runtime_error::runtime_error; };
struct runtime_error : poplar_error { using poplar_error::poplar_error; };
struct graph_connection_error : poplar_error { using poplar_error::poplar_error; };
struct graph_cycle_error : poplar_error { using poplar_error::poplar_error; };
struct graph_object_creation_error : poplar_error { using poplar_error::poplar_error; };
struct graph_object_load_error : poplar_error { using poplar_error::poplar_error; };
struct invalid_tile_mapping : poplar_error { using poplar_error::poplar_error; };
struct control_program_error : poplar_error { using poplar_error::poplar_error; };
struct type_error : poplar_error { using poplar_error::poplar_error; };
struct stream_connection_error : poplar_error { using poplar_error::poplar_error; };
struct invalid_option : poplar_error { using poplar_error::poplar_error; };
struct graph_memory_allocation_error : poplar_error {
  std::string profilePath;
  using poplar_error::poplar_error;
};
} // namespace poplar
