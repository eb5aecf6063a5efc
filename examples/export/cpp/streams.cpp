// Follow two voices with one program: each stream has a state of its own.
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>

#include "vad.h"

namespace {

void check(rammer_status status) {
  if (status != RAMMER_OK) throw std::runtime_error(rammer_text(status));
}

struct Close {
  void operator()(rammer_program *program) const { rammer_close(program); }
  void operator()(rammer_stream *stream) const { rammer_close_stream(stream); }
};

using Samples = std::array<float, 512>;
using Stream = std::unique_ptr<rammer_stream, Close>;

float speech(const Stream &stream, const Samples &samples) {
  float found;
  const void *inputs[] = {samples.data()};
  void *outputs[] = {&found};
  check(rammer_run_stream(stream.get(), inputs, outputs));
  return found;
}

}  // namespace

int main() {
  rammer_program *opened;
  check(rammer_open(&vad_model, nullptr, &opened));
  const std::unique_ptr<rammer_program, Close> vad(opened);
  rammer_stream *made[2];
  for (auto &stream : made) check(rammer_open_stream(vad.get(), nullptr, &stream));
  const Stream loud(made[0]), silent(made[1]);
  Samples tone, silence{};
  for (std::size_t n = 0; n < tone.size(); n++) tone[n] = 0.5f * std::sin(0.2f * static_cast<float>(n));
  for (int frame = 0; frame < 20; frame++)
    std::printf("loud %.2f, silent %.2f\n", speech(loud, tone), speech(silent, silence));
}
