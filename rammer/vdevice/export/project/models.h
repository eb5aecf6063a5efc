/* The models of @NAME@, exported by rammer @VERSION@: see rammer.h. */
#ifndef @GUARD@
#define @GUARD@
#include "rammer.h"

#ifdef __cplusplus
extern "C" {
#endif
@MODELS@
#ifdef __cplusplus
}
#endif
#endif
