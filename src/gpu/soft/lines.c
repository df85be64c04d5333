/* Source lines of addresses: the line programs of an ELF object's .debug_line (DWARF 4, as the compiler is told to
 * write), run until they pass the address. */
#include "gpu/soft/soft.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_FILES = 256 };

typedef struct bytes {
    const uint8_t *at, *end;
} bytes;

struct soft_lines {
    bytes section;
    char path[512]; /* of what was found last */
};

static uint64_t get(bytes *b, int n) {
    uint64_t v = 0;
    if (b->end - b->at < n) {
        b->at = b->end;
        return 0;
    }
    for (int i = 0; i < n; i++)
        v |= (uint64_t)b->at[i] << (8 * i);
    b->at += n;
    return v;
}

static void skip(bytes *b, uint64_t n) {
    b->at = n > (uint64_t)(b->end - b->at) ? b->end : b->at + n;
}

static uint64_t get_unsigned(bytes *b) {
    uint64_t v = 0;
    for (int shift = 0; b->at < b->end; shift += 7) {
        uint8_t c = *b->at++;
        if (shift < 64)
            v |= (uint64_t)(c & 127) << shift;
        if (!(c & 128))
            break;
    }
    return v;
}

static int64_t get_signed(bytes *b) {
    uint64_t v = 0;
    int shift = 0;
    uint8_t c = 128;
    while (b->at < b->end && c & 128) {
        c = *b->at++;
        if (shift < 64)
            v |= (uint64_t)(c & 127) << shift;
        shift += 7;
    }
    if (shift < 64 && c & 64)
        v |= ~0ull << shift;
    return (int64_t)v;
}

static const char *get_string(bytes *b) {
    const char *s = (const char *)b->at;
    const uint8_t *end = memchr(b->at, 0, (size_t)(b->end - b->at));
    if (!end) {
        b->at = b->end;
        return "";
    }
    b->at = end + 1;
    return s;
}

/* A section of a 64-bit little-endian ELF object. */
static bytes find_section(const uint8_t *object, size_t size, const char *name) {
    bytes none = {0}, head = {object + 40, object + size};
    if (size < 64 || memcmp(object, "\177ELF\2\1", 6) != 0)
        return none;
    uint64_t table = get(&head, 8);
    head.at = object + 58;
    uint64_t entry = get(&head, 2), count = get(&head, 2), names = get(&head, 2);
    if (entry < 64 || names >= count || table > size || count * entry > size - table)
        return none;
    bytes strings = {0};
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t i = pass ? 0 : names; i < (pass ? count : names + 1); i++) {
            bytes s = {object + table + i * entry, object + size};
            uint64_t at = get(&s, 4);
            skip(&s, 20);
            uint64_t offset = get(&s, 8), length = get(&s, 8);
            if (offset > size || length > size - offset)
                continue;
            bytes here = {object + offset, object + offset + length};
            if (!pass)
                strings = here;
            else if (at < (uint64_t)(strings.end - strings.at) &&
                     strncmp((const char *)strings.at + at, name, (size_t)(strings.end - strings.at) - at) == 0)
                return here;
        }
    }
    return none;
}

soft_lines *soft_lines_new(const uint8_t *object, size_t size) {
    soft_lines *l = calloc(1, sizeof *l);
    if (l)
        l->section = find_section(object, size, ".debug_line");
    return l;
}

void soft_lines_free(soft_lines *l) {
    free(l);
}

/* One line program. */
typedef struct program {
    bytes code;
    uint8_t least_instruction, line_range, first_special;
    int8_t line_base;
    uint8_t lengths[256]; /* operands of standard opcodes */
    const char *dir[MOST_FILES], *file[MOST_FILES];
    uint64_t dir_of[MOST_FILES];
    uint32_t files;
} program;

static bool read_head(bytes unit, program *p) {
    uint64_t version = get(&unit, 2), length = get(&unit, 4);
    p->code = (bytes){unit.at + (length > (uint64_t)(unit.end - unit.at) ? (uint64_t)(unit.end - unit.at) : length),
                      unit.end};
    if (version != 4)
        return false;
    p->least_instruction = (uint8_t)get(&unit, 1);
    skip(&unit, 2); /* operations per instruction, default of is_stmt */
    p->line_base = (int8_t)get(&unit, 1);
    p->line_range = (uint8_t)get(&unit, 1);
    p->first_special = (uint8_t)get(&unit, 1);
    if (!p->line_range || !p->first_special)
        return false;
    for (int i = 1; i < p->first_special; i++)
        p->lengths[i] = (uint8_t)get(&unit, 1);
    const char *s;
    for (uint32_t i = 1; *(s = get_string(&unit)); i++)
        if (i < MOST_FILES)
            p->dir[i] = s;
    for (p->files = 1; *(s = get_string(&unit)); p->files++) {
        uint64_t dir = get_unsigned(&unit);
        get_unsigned(&unit);
        get_unsigned(&unit);
        if (p->files < MOST_FILES) {
            p->file[p->files] = s;
            p->dir_of[p->files] = dir;
        }
    }
    return true;
}

/* A row of the table that a program makes. */
typedef struct row {
    uint64_t address, file;
    int64_t line;
} row;

typedef struct machine {
    row now, last;
    bool has_last;
} machine;

/* The row that covers the address is the one before the first row beyond it, in the same sequence. */
static bool emit(machine *m, uint64_t address, bool end, row *found) {
    if (m->has_last && m->last.address <= address && address < m->now.address) {
        *found = m->last;
        return true;
    }
    m->last = m->now;
    m->has_last = !end;
    return false;
}

static void advance(const program *p, machine *m, uint64_t opcode_above) {
    m->now.address += opcode_above / p->line_range * p->least_instruction;
}

static bool extended(bytes *b, machine *m, uint64_t address, row *found) {
    uint64_t n = get_unsigned(b);
    bytes body = {b->at, b->at + (n > (uint64_t)(b->end - b->at) ? (uint64_t)(b->end - b->at) : n)};
    b->at = body.end;
    switch (get(&body, 1)) {
    case 1: { /* end of sequence */
        bool hit = emit(m, address, true, found);
        m->now = (row){.file = 1, .line = 1};
        return hit;
    }
    case 2:
        m->now.address = get(&body, 8);
        return false;
    default:
        return false;
    }
}

static bool standard(const program *p, bytes *b, machine *m, uint8_t opcode, uint64_t address, row *found) {
    switch (opcode) {
    case 1:
        return emit(m, address, false, found);
    case 2:
        m->now.address += get_unsigned(b) * p->least_instruction;
        return false;
    case 3:
        m->now.line += get_signed(b);
        return false;
    case 4:
        m->now.file = get_unsigned(b);
        return false;
    case 8:
        advance(p, m, 255u - p->first_special);
        return false;
    case 9:
        m->now.address += get(b, 2);
        return false;
    default:
        for (int i = 0; i < p->lengths[opcode]; i++)
            get_unsigned(b);
        return false;
    }
}

static bool run(const program *p, uint64_t address, row *found) {
    bytes b = p->code;
    machine m = {.now = {.file = 1, .line = 1}};
    while (b.at < b.end) {
        uint8_t opcode = *b.at++;
        bool hit = false;
        if (opcode >= p->first_special) {
            uint8_t above = (uint8_t)(opcode - p->first_special);
            advance(p, &m, above);
            m.now.line += p->line_base + above % p->line_range;
            hit = emit(&m, address, false, found);
        } else if (opcode == 0) {
            hit = extended(&b, &m, address, found);
        } else {
            hit = standard(p, &b, &m, opcode, address, found);
        }
        if (hit)
            return true;
    }
    return false;
}

static void name_file(soft_lines *l, const program *p, uint64_t file) {
    const char *name = file < MOST_FILES && file < p->files && p->file[file] ? p->file[file] : "?";
    uint64_t dir = file < MOST_FILES ? p->dir_of[file] : 0;
    const char *in = dir && dir < MOST_FILES && p->dir[dir] ? p->dir[dir] : NULL;
    size_t used = 0;
    if (in && name[0] != '/') {
        used = strlen(in);
        if (used > sizeof l->path / 2)
            used = 0;
        memcpy(l->path, in, used);
        if (used)
            l->path[used++] = '/';
    }
    size_t n = strlen(name);
    if (n > sizeof l->path - used - 1)
        n = sizeof l->path - used - 1;
    memcpy(l->path + used, name, n);
    l->path[used + n] = 0;
}

int soft_lines_find(soft_lines *l, uint64_t address, const char **file) {
    bytes b = l->section;
    while (b.at < b.end) {
        uint64_t n = get(&b, 4);
        program p = {.files = 0};
        row found;
        bytes unit = {b.at, b.at + (n > (uint64_t)(b.end - b.at) ? (uint64_t)(b.end - b.at) : n)};
        b.at = unit.end;
        if (!read_head(unit, &p) || !run(&p, address, &found))
            continue;
        name_file(l, &p, found.file);
        if (file)
            *file = l->path;
        return found.line > 0 && found.line < INT32_MAX ? (int)found.line : 0;
    }
    return 0;
}
