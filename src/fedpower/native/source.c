#include "loops.h"

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST "unknown"
#endif

/* Which sources this was built from. */
EXPORT const char *fedpower_source(void) { return SOURCE_DIGEST; }
