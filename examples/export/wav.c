/* Print the probability of speech in each 32 ms of a WAV file (16 kHz, mono, 16 bits). */
#include <stdint.h>
#include <stdio.h>

#include "vad.h"

enum { FRAME = 512, RATE = 16000, HEADER = 44 };

int main(int count, char **arguments) {
  FILE *file = count > 1 ? fopen(arguments[1], "rb") : NULL;
  rammer_program *vad;
  int16_t pcm[FRAME];
  float samples[FRAME], speech;
  const void *inputs[] = {samples};
  void *outputs[] = {&speech};
  rammer_status status;
  if (!file || fseek(file, HEADER, SEEK_SET)) {
    fprintf(stderr, "usage: wav FILE.wav\n");
    return 1;
  }
  status = rammer_open(&vad_model, NULL, &vad); /* all memory is taken here; it keeps the state between runs */
  for (int frame = 0; !status && fread(pcm, sizeof pcm, 1, file); frame++) {
    for (int n = 0; n < FRAME; n++) samples[n] = pcm[n] / 32768.0f;
    status = rammer_run(vad, inputs, outputs);
    if (!status) printf("%.3f s: %.2f\n", (double)frame * FRAME / RATE, (double)speech);
  }
  if (status) fprintf(stderr, "%s\n", rammer_text(status));
  rammer_close(vad);
  fclose(file);
  return status != RAMMER_OK;
}
