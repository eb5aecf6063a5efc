/* What rammer.c asks of a system that has files and memory; a system without has nothing. */
#ifndef RAMMER_MEMORY_H
#define RAMMER_MEMORY_H

#include <stddef.h>

void *rammer_system_take(size_t bytes);              /* zeroed, aligned to 128; NULL: there is none */
void rammer_system_give(void *memory, size_t bytes);
const void *rammer_system_map(const char *path, size_t bytes); /* a file of exactly that size, aligned; or NULL */
void rammer_system_unmap(const void *file, size_t bytes);

#endif
