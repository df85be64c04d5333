/* The entry: which command, its options, its exit status. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static const char *command_name(const void *ctx, int i) {
    return cli_commands[i].name;
}

static int unknown_command(const char *word) {
    const char *near = cli_nearest(word, command_name, NULL);
    if (near)
        return cli_complain(CLI_USAGE, "unknown command '%s'; did you mean '%s'?", word, near);
    return cli_complain(CLI_USAGE, "unknown command '%s'; 'sluice help' lists them", word);
}

static int help(int argc, char **argv) {
    if (argc == 0) {
        cli_print_help(stdout);
        return CLI_OK;
    }
    const cli_command *c = cli_find_command(argv[0]);
    if (!c)
        return unknown_command(argv[0]);
    cli_print_command_help(stdout, c);
    return CLI_OK;
}

/* Recorded machines, for tests: without the check a wrong name would be a machine without limits. */
static bool check_environment(sl_error *err) {
    const char *root = getenv("SLUICE_SYSTEM_ROOT");
    return !root || !*root || sl_path_is_dir(root) ||
           sl_fail(err, SL_ERR_ARGUMENT, "SLUICE_SYSTEM_ROOT: \"%s\" is not a directory", root);
}

static int run_command(const cli_command *c, int argc, char **argv) {
    cli_args args;
    sl_error err = {0};
    int status;
    cli_args_init(&args);
    if (!cli_parse(c, argc, argv, &args, &err)) {
        status = cli_complain(CLI_USAGE, "%s", err.message);
    } else if (args.help) {
        cli_print_command_help(stdout, c);
        status = CLI_OK;
    } else if (!check_environment(&err)) {
        status = cli_complain(CLI_FAILED, "%s", err.message);
    } else {
        cli_terminal_quiet(args.quiet);
        status = c->run(&args);
    }
    cli_args_free(&args);
    return status;
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        cli_print_help(stderr);
        return CLI_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        printf("sluice %s\n", sl_version());
        return CLI_OK;
    }
    if (strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return help(argc - 2, argv + 2);
    if (word[0] == '-' && word[1])
        return cli_complain(CLI_USAGE, "unknown option %s before a command; 'sluice help' lists the commands", word);
    const cli_command *c = cli_find_command(word);
    return c ? run_command(c, argc - 2, argv + 2) : unknown_command(word);
}

int main(int argc, char **argv) {
    cli_terminal_init();
    return cli_finish(dispatch(argc, argv));
}
