/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rig of the tests of ctl_*.c: real sockets on loopback, on both methods; two contexts of one
 * process, or one context and a peer made by hand. The data plane's side (conn_*) is faked: lanes
 * that carry a memfd or not. Every test ends by counting open descriptors and connections.
 */
#ifndef CTL_RIG_H
#define CTL_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "control/ctl.h"
#include "control/fake_link.h"

#include <cmocka.h>

#define CORES	 2
#define WAIT_S	 30
#define MSGS_MAX 512
#define CROWD	 300 /* clients at once: more than there are places on the way up */
#define NOBODY	 65534u
#define HDR_B	 8

/* A context with a faked data plane. owner: its control thread, events under lock */
struct fake {
	struct gx gx;
	struct gx_port ports[GX_HELLO_PORTS];
	struct gx_core cores[CORES];
	struct gx_mem mem;
	int lane_fd[CORES];		  /* what the port "shm" gives to each peer */
	int open_err;			  /* conn_lane_open() fails with it */
	int connect_err;		  /* conn_lane_connect() fails with it */
	unsigned holds;			  /* ticks until conn_again() says yes */
	_Atomic bool fault;		  /* the next conn_tick() sees a fault */
	char seen[CORES][32];		  /* what the peer's descriptors hold */
	unsigned nr_opened, nr_connected; /* lanes */
	bool close_on_msg;
	struct auth_key served, own; /* without a name: none */
	const char *name;	     /* gx_auth_opts.name */
	/* under lock */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	_Atomic unsigned nr_up, nr_down, nr_msgs;
	struct gx_conn *up;
	int err;
	enum gx_reason reason;
	char text[256];
	uint32_t msg_len[MSGS_MAX];
	uint32_t msg_first[MSGS_MAX]; /* the first four bytes */
};

static const struct gx_port_name udp[] = {{"udp"}, {"udp"}}, shm = {"shm"},
				 shms[] = {{"shm2"}, {"shm3"}}, dpdk_x = {"dpdk", "x"},
				 card = {"dpdk", "0000:01:00.0"};

extern struct fake *server, *client;
extern enum gx_uring_method method; /* of the contexts */

/* Change something that the control thread reads. */
#define CTL_SET(f, field, value)                                                                   \
	do {                                                                                       \
		gx_uring_run_wait((f)->gx.uring, nop_run, NULL);                                   \
		(f)->field = (value);                                                              \
		gx_uring_run_wait((f)->gx.uring, nop_run, NULL);                                   \
	} while (0)

/* -- ctl_rig.c -- */

void fake_port_add(struct fake *f, const char *name, uint32_t flags, uint32_t best, uint32_t max);
struct fake *fake_open(const char *name);
void fake_close(struct fake *f);
void sleep_ms(unsigned ms);
bool fake_wait(struct fake *f, const _Atomic unsigned *counter, unsigned n);
void wait_up(struct fake *f, unsigned n);
void wait_down(struct fake *f, unsigned n, int err, enum gx_reason reason);
void assert_says(const char *text, const char *what);
uint64_t bad_count(struct fake *f);
void wait_bad(struct fake *f, uint64_t n);
int conns_count(struct fake *f);
void wait_conns(struct fake *f, int n);
void wait_conns_least(struct fake *f, int n);
void log_keep(void *arg, int level, const char *line);
int nop_run(void *arg);
struct gx_conn *client_conn(void);
int server_listen(char addr[32]);
struct gx_conn *client_connect(const char *addr, const struct gx_connect_opts *opts);
/* Both ends up, the server's i-th. */
struct gx_conn *both_up(const char *addr, const struct gx_connect_opts *opts);
void both_up_check(const char *addr);

#define TEST(fn)                                                                                   \
	{                                                                                          \
#fn, fn, rig_setup, rig_teardown, NULL                                             \
	}
/* An address of this host that is not loopback. Return: false when there is none. */
bool other_addr(char *buf, size_t room);
/* The same, for raw_connect_from(); says so when there is none. */
bool far_addr(uint32_t *ip);
int rig_setup(void **state);
int rig_teardown(void **state);
/* Run them on each method that this machine has. Return: how many failed. */
int rig_run(const char *name, const struct CMUnitTest tests[], size_t n);

/* -- ctl_raw.c: a peer made by hand -- */

int raw_connect_from(int port, uint32_t from);
int raw_connect(int port);
/* Nobody else gets the port. */
int raw_bind(int *port);
int raw_listen(int *port);
/* The same. @addr: for client_connect() */
int raw_listen_at(char addr[32]);
/* May end early when the other end closes. */
bool raw_send(int fd, const void *data, size_t len);
/* A ring that closes interrupts the thread which made it: EINTR, once. */
ssize_t raw_recv_some(int fd, void *data, size_t len);
/* By now; nothing has come on @fd before. */
bool raw_has_ended(int fd);
int raw_accept(int fd);
/* Return: type; 0 at the end of the connection. The first passes over a HELLO that comes once more, behind
 * the proof. */
uint16_t raw_recv(int fd, uint8_t body[GX_HELLO_FRAME_MAX], uint32_t *len);
uint16_t raw_recv_any(int fd, uint8_t body[GX_HELLO_FRAME_MAX], uint32_t *len);
void raw_recv_error(int fd, int err, enum gx_reason reason, const char *what);
void raw_hello_fill(struct gx_hello *h);
uint32_t raw_hello(uint8_t *b, uint32_t version);
void raw_lanes_fill(struct gx_hello_lanes *l, const char *port);
/* Says HELLO and takes the server's. */
int raw_client(int port, struct gx_hello *h);
/* Shows on the Unix socket whose we are. Return: that socket. */
int raw_prove(const struct gx_hello *h);
/* Up to the point where the server waits for @l's descriptors on @un; NULL: for nothing more. */
int raw_client_lanes(int port, struct gx_hello *h, const struct gx_hello_lanes *l, int *un);
int raw_unix(const char *name);
bool raw_unix_send(int fd, const void *data, size_t len, const int *fds, unsigned n);
/* The server is as good as new: another client comes up. */
void server_lives(const char *addr);
void connect_refused(int port, const struct gx_hello_lanes *l, int err, const char *what);
int stats_connect(const char *path);

#endif
