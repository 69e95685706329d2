/* The first process of a pod's sandbox and of a node's process namespace: it reaps children and
 * waits.
 *
 * Static, no library calls that need files: it is the only file of its image.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void
end(int signal_number)
{
	(void)signal_number;
	_exit(0);
}

static void
reap(int signal_number)
{
	(void)signal_number;
	while (waitpid(-1, NULL, WNOHANG) > 0) {
	}
}

int
main(void)
{
	struct sigaction on_end = {.sa_handler = end};
	struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP | SA_RESTART};

	if (sigaction(SIGINT, &on_end, NULL) != 0 || sigaction(SIGTERM, &on_end, NULL) != 0 ||
	    sigaction(SIGCHLD, &on_child, NULL) != 0) {
		return EXIT_FAILURE;
	}
	for (;;) {
		(void)pause();
	}
}
