/* The drawing of `sluice routes`: hit rate against cache size on the left, layers x experts on the right. */
#include "routing.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Pixels. */
enum {
    TOP = 70,
    LEFT = 70,
    PLOT_WIDTH = 420,
    PLOT_HEIGHT = 320,
    MAP_LEFT = LEFT + PLOT_WIDTH + 110,
    MAP_WIDTH = 520,
    LEVELS = 9,
    WIDTH = MAP_LEFT + MAP_WIDTH + 110,
    HEIGHT = TOP + PLOT_HEIGHT + 80
};

/* Light to dark in one hue, so that it reads in grey too. */
static const char *const shades[LEVELS] = {"#f7fbff", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6",
                                           "#4292c6", "#2171b5", "#08519c", "#08306b"};

static void text(sl_buf *b, double x, double y, const char *anchor, const char *extra, const char *s) {
    sl_buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>%s</text>\n", x, y, anchor, extra, s);
}

/* ---- the curve ----------------------------------------------------------------------------------------------------
 */

static double plot_x(double share) {
    return LEFT + share * PLOT_WIDTH;
}

static double plot_y(double rate) {
    return TOP + (1 - rate) * PLOT_HEIGHT;
}

static void draw_axes(sl_buf *b, const routing *r) {
    char label[96];
    for (int i = 0; i <= 4; i++) {
        double v = i / 4.0;
        sl_buf_printf(b, "<path d=\"M%.1f %dV%dM%d %.1fH%d\" stroke=\"#ddd\"/>\n", plot_x(v), TOP, TOP + PLOT_HEIGHT,
                      LEFT, plot_y(v), LEFT + PLOT_WIDTH);
        snprintf(label, sizeof label, "%d %%", i * 25);
        text(b, plot_x(v), TOP + PLOT_HEIGHT + 18, "middle", "", label);
        text(b, LEFT - 8, plot_y(v) + 4, "end", "", label);
    }
    sl_buf_printf(b, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#444\"/>\n", LEFT, TOP,
                  PLOT_WIDTH, PLOT_HEIGHT);
    snprintf(label, sizeof label, "experts in memory, of %d", r->layers * r->experts);
    text(b, LEFT + PLOT_WIDTH / 2.0, TOP + PLOT_HEIGHT + 42, "middle", "", label);
    sl_buf_printf(b, "<text transform=\"translate(%d %d) rotate(-90)\" text-anchor=\"middle\">hit rate</text>\n",
                  LEFT - 48, TOP + PLOT_HEIGHT / 2);
    /* What one token asks for: below it LRU has lost an expert before it is used again. */
    double demand = (double)r->top_k / r->experts;
    sl_buf_printf(b, "<path d=\"M%.1f %dV%d\" stroke=\"#888\" stroke-dasharray=\"2 4\"/>\n", plot_x(demand), TOP,
                  TOP + PLOT_HEIGHT);
    bool right = demand < 0.6;
    text(b, plot_x(demand) + (right ? 5 : -5), TOP + PLOT_HEIGHT - 8, right ? "start" : "end", " fill=\"#666\"",
         "one token&#8217;s experts");
}

static void draw_line(sl_buf *b, const routing_curve *c, const double *rate, int total, const char *style,
                      const char *name, int row) {
    sl_buf_printf(b, "<path fill=\"none\" stroke-width=\"2\" %s d=\"M%.1f %.1f", style, plot_x(0), plot_y(0));
    for (int i = 0; i < c->count; i++)
        sl_buf_printf(b, "L%.1f %.1f", plot_x((double)c->size[i] / total), plot_y(rate[i]));
    double y = TOP + PLOT_HEIGHT - 84 + 18 * row, x = LEFT + PLOT_WIDTH - 150;
    sl_buf_printf(b, "\"/>\n<path stroke-width=\"2\" %s d=\"M%.1f %.1fh28\"/>\n", style, x, y - 4);
    text(b, x + 36, y, "start", "", name);
}

static void draw_curve(sl_buf *b, const routing *r, const routing_curve *c) {
    int total = r->layers * r->experts;
    draw_axes(b, r);
    draw_line(b, c, c->best, total, "stroke=\"#009e73\" stroke-dasharray=\"8 3\"", "best possible", 0);
    draw_line(b, c, c->lfu, total, "stroke=\"#e69f00\" stroke-dasharray=\"3 2\"", "LFU", 1);
    draw_line(b, c, c->lru, total, "stroke=\"#0072b2\"", "LRU", 2);
}

/* ---- the heat map -------------------------------------------------------------------------------------------------
 */

/* 0 unused; then by how the use compares with the layer's mean: below 1/8, 1/4, 1/2, 1, 2, 4, 8 times, above. */
static int level_of(uint32_t uses, double mean) {
    int level = 1;
    if (uses == 0)
        return 0;
    for (double bound = mean / 8; level < LEVELS - 1 && uses >= bound; bound *= 2)
        level++;
    return level;
}

/* One path per shade: a square of side 1 for each expert, runs of equals joined. */
static void draw_cells(sl_buf *b, const routing *r, const uint32_t *uses, int level) {
    double mean = (double)r->tokens * r->top_k / r->experts;
    bool any = false;
    for (int l = 0; l < r->layers; l++) {
        const uint32_t *row = uses + (size_t)l * (size_t)r->experts;
        for (int x = 0, run; x < r->experts; x += run) {
            int own = level_of(row[x], mean);
            for (run = 1; x + run < r->experts && level_of(row[x + run], mean) == own; run++)
                ;
            if (own != level)
                continue;
            if (!any)
                sl_buf_printf(b, "<path fill=\"%s\" d=\"", shades[level]);
            any = true;
            sl_buf_printf(b, "M%d %dh%dv1h-%dz", x, l, run, run);
        }
    }
    if (any)
        sl_buf_puts(b, "\"/>\n");
}

static void draw_scale(sl_buf *b) {
    static const char *const names[LEVELS] = {"never",  "&lt; 1/8", "&lt; 1/4", "&lt; 1/2", "&lt; 1",
                                              "&lt; 2", "&lt; 4",   "&lt; 8",   "8 or more"};
    double x = MAP_LEFT + MAP_WIDTH + 14;
    text(b, x, TOP + 10, "start", "", "uses / mean");
    for (int i = 0; i < LEVELS; i++) {
        double y = TOP + 22 + 20 * (LEVELS - 1 - i);
        sl_buf_printf(b, "<rect x=\"%.1f\" y=\"%.1f\" width=\"16\" height=\"16\" fill=\"%s\" stroke=\"#999\"/>\n", x, y,
                      shades[i]);
        text(b, x + 22, y + 12, "start", "", names[i]);
    }
}

static void draw_map(sl_buf *b, const routing *r, const uint32_t *uses) {
    char label[64];
    sl_buf_printf(b, "<g transform=\"translate(%d %d) scale(%.6f %.6f)\" shape-rendering=\"crispEdges\">\n", MAP_LEFT,
                  TOP, (double)MAP_WIDTH / r->experts, (double)PLOT_HEIGHT / r->layers);
    for (int level = 0; level < LEVELS; level++)
        draw_cells(b, r, uses, level);
    sl_buf_printf(b, "</g>\n<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#444\"/>\n",
                  MAP_LEFT, TOP, MAP_WIDTH, PLOT_HEIGHT);
    int step = (r->layers + 15) / 16;
    for (int l = 0; l < r->layers; l += step) {
        snprintf(label, sizeof label, "%d", r->layer[l]);
        text(b, MAP_LEFT - 6, TOP + (l + 0.5) * PLOT_HEIGHT / r->layers + 4, "end", "", label);
    }
    sl_buf_printf(b, "<text transform=\"translate(%d %d) rotate(-90)\" text-anchor=\"middle\">layer</text>\n",
                  MAP_LEFT - 36, TOP + PLOT_HEIGHT / 2);
    text(b, MAP_LEFT, TOP + PLOT_HEIGHT + 18, "start", "", "0");
    snprintf(label, sizeof label, "%d", r->experts - 1);
    text(b, MAP_LEFT + MAP_WIDTH, TOP + PLOT_HEIGHT + 18, "end", "", label);
    text(b, MAP_LEFT + MAP_WIDTH / 2.0, TOP + PLOT_HEIGHT + 42, "middle", "", "expert");
    draw_scale(b);
}

/* ---- the file -----------------------------------------------------------------------------------------------------
 */

static bool write_file(const char *path, const sl_buf *b, sl_error *err) {
    char *fresh = sl_asprintf("%s.new", path);
    FILE *f = fresh ? fopen(fresh, "wbe") : NULL;
    bool ok = f && fwrite(b->data, 1, b->size, f) == b->size;
    if (f && fclose(f) != 0)
        ok = false;
    if (!ok || rename(fresh, path) != 0) {
        ok = sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot write", path);
        if (f)
            unlink(fresh);
    }
    free(fresh);
    return ok;
}

bool routing_draw(const routing *r, const routing_curve *c, const uint32_t *uses, const char *path, sl_error *err) {
    sl_buf b = {0};
    char label[160];
    sl_buf_printf(
        &b,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT);
    snprintf(label, sizeof label, "%zu tokens; %d layers of %d experts, %d per token", r->tokens, r->layers, r->experts,
             r->top_k);
    text(&b, LEFT, 28, "start", " font-size=\"16\"", label);
    text(&b, LEFT, TOP - 14, "start", " fill=\"#444\"", "Hits of a cache for all layers, by its size");
    text(&b, MAP_LEFT, TOP - 14, "start", " fill=\"#444\"", "How often each expert was used");
    draw_curve(&b, r, c);
    draw_map(&b, r, uses);
    sl_buf_puts(&b, "</svg>\n");
    bool ok = b.failed ? sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path) : write_file(path, &b, err);
    sl_buf_free(&b);
    return ok;
}
