/* Layout: every part has its place, every byte of a part is read, and areas that lie near each other are one read. */
#include "support_experts.h"

#include <stdlib.h>
#include <string.h>

/* Files that only have a size. */
typedef struct fake_files {
    sl_file file[MODEL_FILES];
    const sl_file *pointer[MODEL_FILES];
    experts_files files;
} fake_files;

static void fake(fake_files *f, uint32_t align, bool direct, uint64_t size) {
    memset(f, 0, sizeof *f);
    for (int i = 0; i < MODEL_FILES; i++) {
        f->file[i] = (sl_file){.path = "model.bin", .fd = -1, .direct_fd = 1, .direct_align = align, .size = size};
        f->pointer[i] = &f->file[i];
    }
    f->files = (experts_files){f->pointer, MODEL_FILES, direct};
}

static void adjacent_parts_are_one_read(void **state) {
    fake_files f;
    sl_error err;
    fake(&f, 512, true, 1 << 20);
    sl_extent ext[SL_EXPERT_PARTS] = {[0] = {0, 1000, 3000}, [3] = {0, 4000, 500}, [6] = {0, 4500, 20}};
    experts_layout l;
    assert_true(experts_layout_make(&f.files, ext, &l, &err));
    assert_int_equal(l.areas, 1);
    assert_int_equal(l.area[0].offset, 512);
    assert_int_equal(l.area[0].need, 4520 - 512);
    assert_int_equal(l.area[0].bytes, 4096);
    assert_int_equal(l.part[0], 1000 - 512);
    assert_int_equal(l.part[3], 4000 - 512);
    assert_int_equal(l.part[6], 4500 - 512);
    assert_int_equal(l.part[1], EXPERTS_NO_PART);
}

static void near_parts_are_one_read_and_distant_ones_two(void **state) {
    fake_files f;
    sl_error err;
    fake(&f, 512, true, 1 << 20);
    experts_layout l;
    sl_extent near[SL_EXPERT_PARTS] = {[0] = {0, 8192, 100}, [1] = {0, 8192 + 512 + 4096, 100}};
    assert_true(experts_layout_make(&f.files, near, &l, &err));
    assert_int_equal(l.areas, 1);
    sl_extent far[SL_EXPERT_PARTS] = {[0] = {0, 8192, 100}, [1] = {0, 8192 + 512 + 4096 + 512, 100}};
    assert_true(experts_layout_make(&f.files, far, &l, &err));
    assert_int_equal(l.areas, 2);
    assert_int_equal(l.part[1], 512);
    sl_extent other_file[SL_EXPERT_PARTS] = {[0] = {0, 8192, 100}, [1] = {1, 8292, 100}};
    assert_true(experts_layout_make(&f.files, other_file, &l, &err));
    assert_int_equal(l.areas, 2);
}

/* A part in descending place, one inside another, one twice. */
static void order_of_parts_does_not_matter(void **state) {
    fake_files f;
    sl_error err;
    fake(&f, 4096, true, 1 << 20);
    sl_extent ext[SL_EXPERT_PARTS] = {
        [0] = {1, 70000, 333}, [2] = {1, 5000, 3000}, [4] = {1, 5100, 10}, [5] = {1, 70000, 333}, [8] = {0, 9, 1}};
    experts_layout l;
    assert_true(experts_layout_make(&f.files, ext, &l, &err));
    assert_int_equal(l.areas, 3);
    assert_int_equal(l.area[0].file, 0);
    assert_int_equal(l.area[1].offset, 4096);
    assert_int_equal(l.area[2].offset, 69632);
    assert_int_equal(l.part[8], 9);
    assert_int_equal(l.part[2], 4096 + 904);
    assert_int_equal(l.part[4], 4096 + 1004);
    assert_int_equal(l.part[0], 8192 + 368);
    assert_int_equal(l.part[5], l.part[0]);
}

static void check_layout(const fake_files *f, const sl_extent *ext, const experts_layout *l) {
    uint64_t end = 0;
    for (int i = 0; i < l->areas; i++) {
        const experts_area *a = &l->area[i];
        uint32_t align = f->files.direct ? f->file[a->file].direct_align : 64;
        assert_true(a->at >= end);
        end = a->at + a->bytes;
        assert_int_equal(a->offset % align, 0);
        assert_int_equal(a->bytes % align, 0);
        assert_int_equal(a->at % align, 0);
        assert_true(a->need <= a->bytes && a->bytes - a->need < align);
        assert_true(a->offset + a->need <= f->file[a->file].size);
    }
    assert_int_equal(l->bytes, end);
    for (int p = 0; p < SL_EXPERT_PARTS; p++) {
        if (ext[p].bytes == 0) {
            assert_int_equal(l->part[p], EXPERTS_NO_PART);
            continue;
        }
        int inside = 0;
        for (int i = 0; i < l->areas; i++) {
            const experts_area *a = &l->area[i];
            inside += a->file == ext[p].file && ext[p].offset >= a->offset &&
                      ext[p].offset + ext[p].bytes <= a->offset + a->need &&
                      l->part[p] == (int32_t)(a->at + (ext[p].offset - a->offset));
        }
        assert_int_equal(inside, 1);
    }
}

static void random_layouts_hold_every_part(void **state) {
    rng r = rng_start("layout");
    for (int round = 0; round < 3000; round++) {
        fake_files f;
        bool direct = rng_below(&r, 4) > 0;
        fake(&f, 512, direct, 100000 + rng_below(&r, 1000000));
        for (int i = 0; i < MODEL_FILES; i++)
            f.file[i].direct_align = 512u << rng_below(&r, 4);
        sl_extent ext[SL_EXPERT_PARTS] = {0};
        int32_t which[SL_EXPERT_PARTS], parts = 1 + (int32_t)rng_below(&r, SL_EXPERT_PARTS);
        rng_ids(&r, which, parts, SL_EXPERT_PARTS);
        for (int32_t i = 0; i < parts; i++) {
            uint64_t bytes = 1 + rng_below(&r, 20000);
            uint64_t offset = rng_next(&r) % (f.file[0].size - bytes + 1);
            ext[which[i]] = (sl_extent){(int32_t)rng_below(&r, MODEL_FILES), offset, bytes};
        }
        experts_layout l;
        sl_error err;
        assert_true(experts_layout_make(&f.files, ext, &l, &err));
        check_layout(&f, ext, &l);
        sl_expert_layer layer = {1, ext, NULL, 0};
        uint64_t slot;
        assert_true(experts_layer_slot_bytes(&f.files, &layer, &slot, &err));
        assert_true(slot >= l.bytes && slot - l.bytes < 4096 && slot % 4096 == 0);
    }
}

static void expect_error(const fake_files *f, sl_extent x, const char *text) {
    sl_extent ext[SL_EXPERT_PARTS] = {[4] = x};
    experts_layout l;
    sl_error err = {0};
    assert_false(experts_layout_make(&f->files, ext, &l, &err));
    assert_non_null(strstr(err.message, text));
}

static void hostile_extents_are_errors(void **state) {
    fake_files f;
    fake(&f, 512, true, 1000);
    expect_error(&f, (sl_extent){-1, 0, 1}, "file -1");
    expect_error(&f, (sl_extent){MODEL_FILES, 0, 1}, "file 3");
    expect_error(&f, (sl_extent){0, 1000, 1}, "1 bytes at offset 1000, the file has 1000");
    expect_error(&f, (sl_extent){0, 0, 1001}, "1001 bytes at offset 0");
    expect_error(&f, (sl_extent){0, UINT64_MAX - 4, 8}, "model.bin: part 4");
    expect_error(&f, (sl_extent){0, 8, UINT64_MAX - 4}, "model.bin: part 4");
    expect_error(&f, (sl_extent){0, 0, 0}, "no parts");
    fake(&f, 512, true, 1ull << 40);
    expect_error(&f, (sl_extent){0, 1000, 1ull << 33}, "at most 2 GiB");
}

static void sizes_that_hardly_differ_share_slots(void **state) {
    uint64_t mib = 1 << 20;
    uint64_t near[] = {40 * mib, 38 * mib, 40 * mib - 4096, 20 * mib}, tiny[] = {61440, 65536, 57344, 8192};
    sl_experts_share_slots(near, 4);
    assert_true(near[0] == 40 * mib && near[1] == 40 * mib && near[2] == 40 * mib && near[3] == 20 * mib);
    sl_experts_share_slots(tiny, 4);
    assert_true(tiny[0] == 65536 && tiny[1] == 65536 && tiny[2] == 65536 && tiny[3] == 8192);
    /* A chain of small steps is not one class: a class spans a sixteenth at most. */
    uint64_t chain[] = {160 * mib, 152 * mib, 144 * mib, 136 * mib};
    sl_experts_share_slots(chain, 4);
    assert_true(chain[0] == 160 * mib && chain[1] == 160 * mib && chain[2] == 144 * mib && chain[3] == 144 * mib);
    sl_experts_share_slots(NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adjacent_parts_are_one_read),
        cmocka_unit_test(near_parts_are_one_read_and_distant_ones_two),
        cmocka_unit_test(order_of_parts_does_not_matter),
        cmocka_unit_test(random_layouts_hold_every_part),
        cmocka_unit_test(sizes_that_hardly_differ_share_slots),
        cmocka_unit_test(hostile_extents_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
