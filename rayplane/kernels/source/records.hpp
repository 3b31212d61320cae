// What Python hands over: a program is an array of Ops over fixed buffers; a Step says what it is run on. Mirrored in records.py.
#pragma once

#include <cstdint>

enum Kind : int32_t { NORM = 0, LINEAR = 1, EMBED = 2, ROTATE = 3, ATTEND = 4, ACT = 5, SUM = 6, OFFER = 7, MERGE = 8, NUM_KINDS = 9 };

struct Op {
    int32_t kind, format;  // of the activations
    const void* p[8];
    int64_t n[12];
    float f[2];
};

struct Step {
    int64_t tokens, sequences, width, rows;
    int64_t queries, first;  // over cp: of all ranks, and the first of this one
    const int64_t *ids, *positions, *slots;
    const int32_t *starts, *lengths, *tables;
    const int64_t* wanted;
    const int32_t* keys;  // over cp [2, queries]: of the keys kept here each query meets those from .. up to before; else null
};
