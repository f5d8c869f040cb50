/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a key costs those who connect. A server in a child: connections in clear and with a key in turn,
 * one after another, from gx_connect() to up; then handshakes of TLS alone, by a client that does nothing
 * else, with the key and with another secret. usage: hands [CONNECTIONS [HANDSHAKES]]
 */
#include "auth/auth_tls.h"
#include "gx/auth.h"
#include "gx/gx.h"
#include "gx/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WAIT_NS 10000000000ull
#define PORT_A	"127.0.0.1:0"

static char folder[] = "/tmp/gx-hands-XXXXXX", path[64];

static void must(int ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "hands: %s: %s (%s)\n", what, gx_error(), strerror(-ret));
	exit(1);
}

static double now_s(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static struct gx *context(bool server, bool key)
{
	const char *files[] = {path};
	struct gx_auth_opts a = GX_INIT(a);
	struct gx_opts o = GX_INIT(o);
	struct gx *gx;

	o.server = server;
	o.auth = &a;
	if (server) {
		a.key_files = files;
		a.nr_key_files = 1;
	} else if (key) {
		a.key_file = path;
	}
	must(gx_open(&o, &gx), "open");
	return gx;
}

/* Return: its port. */
static int serve(pid_t *child)
{
	int32_t port = 0;
	int p[2];

	if (pipe(p))
		exit(1);
	*child = fork();
	if (!*child) {
		struct gx *gx = context(true, false);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		gx_log_level_set(GX_LOG_ERR);
		port = gx_listen(gx, PORT_A);
		must(port, "listen");
		if (write(p[1], &port, sizeof(port)) < 0)
			exit(1);
		for (;;)
			pause();
	}
	if (read(p[0], &port, sizeof(port)) != sizeof(port))
		exit(1);
	return port;
}

static double connect_s(struct gx *gx, const char *addr)
{
	const struct timespec rest = {.tv_nsec = 60000000};
	double start_s = now_s(CLOCK_MONOTONIC), s;
	struct gx_conn *c;

	must(gx_connect(gx, addr, NULL, &c), "connect");
	must(gx_conn_wait(c, WAIT_NS), "up");
	s = now_s(CLOCK_MONOTONIC) - start_s;
	gx_conn_close(c);
	nanosleep(&rest, NULL); /* the server gives its memory back */
	return s;
}

static int by_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), by_double);
	return v[n / 2];
}

static void connections(int port, unsigned n)
{
	struct gx *gx[2] = {context(false, false), context(false, true)};
	double *s[2] = {calloc(n, sizeof(double)), calloc(n, sizeof(double))}, clear_s, key_s;
	char addr[32];

	snprintf(addr, sizeof(addr), "127.0.0.1:%d", port);
	for (unsigned i = 0; i < n; i++)
		for (unsigned k = 0; k < 2; k++)
			s[k][i] = connect_s(gx[k], addr);
	clear_s = median(s[0], n);
	key_s = median(s[1], n);
	printf("connect: median of %u: in clear %.0f us, with a key %.0f us, ratio %.2f\n", n,
	       clear_s * 1e6, key_s * 1e6, key_s / clear_s);
	gx_close(gx[0]);
	gx_close(gx[1]);
}

/* Return: the result of the handshake. */
static int hand(struct auth_tls_ctx *ctx, int port, const char *name, const uint8_t *secret)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
				 .sin_addr = {htonl(INADDR_LOOPBACK)},
				 .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), ret;
	struct auth_tls *t = auth_tls_new(ctx, false, name, secret);
	const struct linger now = {1, 0}; /* or the ports of this host are all in TIME_WAIT */
	uint8_t b[4096];

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	must(connect(fd, (struct sockaddr *)&sa, sizeof(sa)) ? -errno : 0, "TCP");
	while (!(ret = auth_tls_step(t))) {
		ssize_t n = (ssize_t)auth_tls_out(t, b, sizeof(b));

		if (n)
			must((int)send(fd, b, (size_t)n, MSG_NOSIGNAL), "send");
		n = recv(fd, b, sizeof(b), 0);
		if (n <= 0)
			break;
		auth_tls_put(t, b, (size_t)n);
	}
	auth_tls_free(t);
	close(fd);
	return ret;
}

static void handshakes(int port, pid_t server, unsigned n, const struct gx_auth_key *key, bool good)
{
	struct auth_tls_ctx *ctx = auth_tls_ctx_open();
	double wall_s, cpu_s;
	clockid_t clock;
	unsigned ok = 0;
	uint8_t secret[AUTH_SECRET_B];

	memcpy(secret, key->secret, sizeof(secret));
	secret[0] ^= !good;
	clock_getcpuclockid(server, &clock);
	wall_s = now_s(CLOCK_MONOTONIC);
	cpu_s = now_s(clock);
	for (unsigned i = 0; i < n; i++)
		ok += hand(ctx, port, "kv", secret) == (good ? 1 : -EACCES);
	wall_s = now_s(CLOCK_MONOTONIC) - wall_s;
	cpu_s = now_s(clock) - cpu_s;
	printf("handshakes with %s secret: %u of %u, %.0f a second by one client, %.1f us of the "
	       "server's CPU each\n",
	       good ? "the" : "another", ok, n, n / wall_s, cpu_s / n * 1e6);
	auth_tls_ctx_close(ctx);
}

/* Does time tell whether a name is known? */
static void refusals(int port, unsigned n)
{
	static const char *const names[2] = {"kv", "kw"};
	struct auth_tls_ctx *ctx = auth_tls_ctx_open();
	double *s[2] = {calloc(n, sizeof(double)), calloc(n, sizeof(double))};
	const uint8_t secret[AUTH_SECRET_B] = {1};

	for (unsigned i = 0; i < 2 * n; i++) {
		double start_s = now_s(CLOCK_MONOTONIC);

		hand(ctx, port, names[i % 2], secret);
		s[i % 2][i / 2] = now_s(CLOCK_MONOTONIC) - start_s;
	}
	printf("refused after, median of %u: another secret %.1f us, unknown name %.1f us\n", n,
	       median(s[0], n) * 1e6, median(s[1], n) * 1e6);
	auth_tls_ctx_close(ctx);
}

int main(int argc, char **argv)
{
	unsigned conns = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 0) : 100,
		 hands = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 0) : 10000;
	struct gx_auth_key key = {.size = sizeof(key), .name = "kv"};
	pid_t server;
	int port;

	if (!mkdtemp(folder))
		return 1;
	snprintf(path, sizeof(path), "%s/kv.key", folder);
	must(gx_auth_make(path, &key), "key");
	must(gx_auth_read(path, &key), "key");
	port = serve(&server);
	connections(port, conns);
	handshakes(port, server, hands, &key, true);
	handshakes(port, server, hands, &key, false);
	refusals(port, hands);
	kill(server, SIGKILL);
	unlink(path);
	rmdir(folder);
	return 0;
}
