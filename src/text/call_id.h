/* Names of tool calls, by which a client's history refers to what the model wrote (spec/encoding.md §3.8). */
#ifndef DI_TEXT_CALL_ID_H
#define DI_TEXT_CALL_ID_H

#include "base/str.h"

#define DI_CALL_ID_RANDOM 24 /* bytes that one id takes; 24 letters or digits carry more than 128 bits */
#define DI_CALL_ID_BYTES 48  /* room for an id and its 0 byte */

/* "call_NN_" and 24 letters or digits, in the order of calls as long as there are at most a hundred; "call_NN_ET_..." if the turn was a
 * thinking one without any reasoning. */
void di_call_id_write(char id[DI_CALL_ID_BYTES], size_t index, bool empty_thinking, const unsigned char random[DI_CALL_ID_RANDOM]);

#endif
