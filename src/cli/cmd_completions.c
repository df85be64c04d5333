/* sluice completions: scripts for bash, zsh and fish, made from the tables of commands and options. */
#include "cli.h"
#include "synth.h"

#include <string.h>

/* ---- the words that a command's first operand is one of ---------------------------------------------------------- */

static void print_words(const char *words);

static bool has_first_words(const cli_command *c) {
    return strcmp(c->name, "synth") == 0 || memchr(c->operands, '|', strcspn(c->operands, " "));
}

/* Between spaces: shapes, or what the usage line lists. */
static void print_first_words(const cli_command *c) {
    char listed[64];
    snprintf(listed, sizeof listed, "%.*s", (int)strcspn(c->operands, " "), c->operands);
    if (strcmp(c->name, "synth") != 0) {
        print_words(listed);
        return;
    }
    printf("list");
    for (const synth_shape *s = synth_shapes; s->name; s++)
        printf(" %s", s->name);
}

static void print_command_names(void) {
    for (const cli_command *c = cli_commands; c->name; c++)
        printf("%s%s", c == cli_commands ? "" : " ", c->name);
}

/* ---- bash -------------------------------------------------------------------------------------------------------- */

static bool wants_file(const cli_option *o) {
    return o->kind == CLI_TEXT && strcmp(o->value, "FILE") == 0;
}

static bool has_words(const cli_option *o) {
    return o->kind == CLI_CHOICE || o->kind == CLI_LEVEL;
}

/* "a|b" as "a b". */
static void print_words(const char *words) {
    for (; *words; words++)
        putchar(*words == '|' ? ' ' : *words);
}

static void print_bash_command(const cli_command *c) {
    const cli_option *o;
    printf("    %s)\n        case $previous in\n", c->name);
    for (int i = 0; (o = cli_option_at(c, i)); i++) {
        if (!has_words(o))
            continue;
        printf("        --%s)\n            COMPREPLY=($(compgen -W \"", o->name);
        print_words(o->value);
        printf("\" -- \"$current\"))\n            return\n            ;;\n");
    }
    printf("        esac\n        options=\"");
    for (int i = 0; (o = cli_option_at(c, i)); i++)
        printf("%s--%s", i ? " " : "", o->name);
    printf("\"\n");
    if (has_first_words(c)) {
        printf("        words=\"");
        print_first_words(c);
        printf("\"\n");
    }
    printf("        ;;\n");
}

static void print_bash(void) {
    printf("# bash completion for sluice\n"
           "_sluice() {\n"
           "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} options= words=\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
           "        COMPREPLY=($(compgen -W \"");
    print_command_names();
    printf(" help --version\" -- \"$current\"))\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n");
    for (const cli_command *c = cli_commands; c->name; c++)
        print_bash_command(c);
    printf("    help)\n        words=\"");
    print_command_names();
    printf("\"\n        ;;\n    esac\n"
           "    if [ \"$COMP_CWORD\" -eq 2 ] && [ -n \"$words\" ] && [ \"${current#-}\" = \"$current\" ]; then\n"
           "        COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n        return\n    fi\n"
           "    case $current in\n"
           "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$current\")) ;;\n"
           "    *) COMPREPLY=($(compgen -f -- \"$current\")) ;;\n"
           "    esac\n"
           "}\n"
           "complete -o filenames -F _sluice sluice\n");
}

/* ---- zsh --------------------------------------------------------------------------------------------------------- */

/* Inside single quotes and zsh's own [ ] and : of an _arguments specification. */
static void print_zsh_text(const char *s) {
    for (; *s; s++) {
        if (*s == '\'')
            printf("'\\''");
        else if (strchr("[]:\\", *s))
            printf("\\%c", *s);
        else
            putchar(*s);
    }
}

static void print_zsh_option(const cli_option *o) {
    bool repeated = o->kind == CLI_LIST || o->kind == CLI_BIAS;
    printf("            '%s--%s[", repeated ? "*" : "", o->name);
    print_zsh_text(o->help);
    printf("]");
    if (o->value) {
        printf(":");
        print_zsh_text(has_words(o) ? o->name : o->value);
        printf(":");
        if (has_words(o)) {
            printf("(");
            print_words(o->value);
            printf(")");
        } else if (wants_file(o)) {
            printf("_files");
        }
    }
    printf("' \\\n");
}

static void print_zsh(void) {
    const cli_option *o;
    printf("#compdef sluice\n\n_sluice() {\n    local -a commands\n    commands=(\n");
    for (const cli_command *c = cli_commands; c->name; c++) {
        printf("        '%s:", c->name);
        print_zsh_text(c->summary);
        printf("'\n");
    }
    printf("        'help:show the options of a command'\n    )\n"
           "    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n"
           "    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $command in\n");
    for (const cli_command *c = cli_commands; c->name; c++) {
        printf("    %s)\n        _arguments -s \\\n", c->name);
        for (int i = 0; (o = cli_option_at(c, i)); i++)
            print_zsh_option(o);
        if (has_first_words(c)) {
            printf("            '1:what:(");
            print_first_words(c);
            printf(")' \\\n");
        }
        printf("            '*:file:_files'\n        ;;\n");
    }
    printf("    help)\n        _describe command commands\n        ;;\n    esac\n}\n\n_sluice \"$@\"\n");
}

/* ---- fish -------------------------------------------------------------------------------------------------------- */

static void print_fish_text(const char *s) {
    for (; *s; s++) {
        if (*s == '\'' || *s == '\\')
            putchar('\\');
        putchar(*s);
    }
}

static void print_fish_option(const cli_command *c, const cli_option *o) {
    printf("complete -c sluice -n '__fish_seen_subcommand_from %s' -l %s", c->name, o->name);
    if (o->letter)
        printf(" -s %c", o->letter);
    if (has_words(o)) {
        printf(" -x -a '");
        print_words(o->value);
        printf("'");
    } else if (o->value) {
        printf(wants_file(o) ? " -r" : " -x");
    }
    printf(" -d '");
    print_fish_text(o->help);
    printf("'\n");
}

static void print_fish(void) {
    const cli_option *o;
    printf("# fish completion for sluice\n");
    for (const cli_command *c = cli_commands; c->name; c++) {
        printf("complete -c sluice -n __fish_use_subcommand -f -a %s -d '", c->name);
        print_fish_text(c->summary);
        printf("'\n");
    }
    printf("complete -c sluice -n __fish_use_subcommand -f -a help -d 'show the options of a command'\n");
    printf("complete -c sluice -n '__fish_seen_subcommand_from help' -f -a '");
    print_command_names();
    printf("'\n");
    for (const cli_command *c = cli_commands; c->name; c++) {
        if (has_first_words(c)) {
            printf("complete -c sluice -n '__fish_seen_subcommand_from %s' -a '", c->name);
            print_first_words(c);
            printf("'\n");
        }
        for (int i = 0; (o = cli_option_at(c, i)); i++)
            print_fish_option(c, o);
    }
}

int cli_completions(const cli_args *a) {
    static const struct {
        const char *shell;
        void (*print)(void);
    } shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    for (size_t i = 0; i < SL_COUNT(shells); i++)
        if (strcmp(a->operand[0], shells[i].shell) == 0) {
            shells[i].print();
            return CLI_OK;
        }
    return cli_complain(CLI_USAGE, "unknown shell '%s': expected bash, zsh or fish", a->operand[0]);
}
