/* Memory and mapped files of hosted systems. */
#if defined(__linux__)
#define _GNU_SOURCE
#endif
#include "memory.h"

#if !__STDC_HOSTED__
void *rammer_system_take(size_t bytes) { return (void)bytes, (void *)0; }
void rammer_system_give(void *memory, size_t bytes) { (void)memory, (void)bytes; }
const void *rammer_system_map(const char *path, size_t bytes) { return (void)path, (void)bytes, (const void *)0; }
void rammer_system_unmap(const void *file, size_t bytes) { (void)file, (void)bytes; }
#elif defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
void *rammer_system_take(size_t bytes) { return VirtualAlloc(NULL, bytes, MEM_COMMIT | MEM_RESERVE, PAGE_READWRITE); }
void rammer_system_give(void *memory, size_t bytes) { (void)bytes, VirtualFree(memory, 0, MEM_RELEASE); }
const void *rammer_system_map(const char *path, size_t bytes) {
  HANDLE file = CreateFileA(path, GENERIC_READ, FILE_SHARE_READ, NULL, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL), map;
  const void *found = NULL;
  LARGE_INTEGER size;
  if (file == INVALID_HANDLE_VALUE) return NULL;
  if (GetFileSizeEx(file, &size) && (unsigned long long)size.QuadPart == bytes &&
      (map = CreateFileMappingA(file, NULL, PAGE_READONLY, 0, 0, NULL))) {
    found = MapViewOfFile(map, FILE_MAP_READ, 0, 0, 0);
    CloseHandle(map);
  }
  CloseHandle(file);
  return found;
}
void rammer_system_unmap(const void *file, size_t bytes) { (void)bytes, UnmapViewOfFile(file); }
#elif defined(__wasm__)
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
void *rammer_system_take(size_t bytes) {
  void *memory = aligned_alloc(128, (bytes + 127) / 128 * 128);
  return memory ? memset(memory, 0, bytes) : NULL;
}
void rammer_system_give(void *memory, size_t bytes) { (void)bytes, free(memory); }
const void *rammer_system_map(const char *path, size_t bytes) {
  FILE *file = fopen(path, "rb");
  void *memory = file ? rammer_system_take(bytes + 1) : NULL;
  if (memory && fread(memory, 1, bytes + 1, file) != bytes) free(memory), memory = NULL;
  if (file) fclose(file);
  return memory;
}
void rammer_system_unmap(const void *file, size_t bytes) { rammer_system_give((void *)(size_t)file, bytes); }
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
enum { HUGE = 2 << 20, PAGE = 64 << 10 }; /* no system has larger pages */
void *rammer_system_take(size_t bytes) { /* in huge pages, where the system has them, but for the last part of one */
  const size_t size = (bytes + PAGE - 1) / PAGE * PAGE, more = bytes < HUGE ? 0 : HUGE;
  char *memory = mmap(NULL, size + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return NULL;
  if (more) {
    const size_t skip = (HUGE - (size_t)memory % HUGE) % HUGE;
    if (skip) munmap(memory, skip);
    memory += skip;
    munmap(memory + size, HUGE - skip);
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes / HUGE * HUGE, MADV_HUGEPAGE);
#endif
  }
  return memory;
}
void rammer_system_give(void *memory, size_t bytes) { munmap(memory, (bytes + PAGE - 1) / PAGE * PAGE); }
const void *rammer_system_map(const char *path, size_t bytes) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat about;
  void *found = MAP_FAILED;
  if (file < 0) return NULL;
  if (!fstat(file, &about) && (size_t)about.st_size == bytes) found = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  return found == MAP_FAILED ? NULL : found;
}
void rammer_system_unmap(const void *file, size_t bytes) { munmap((void *)(size_t)file, bytes); }
#endif
