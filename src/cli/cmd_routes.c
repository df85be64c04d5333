#include "cli.h"
int cli_routes(const cli_args *a) {
    return cli_complain(CLI_FAILED, "not yet");
}
