/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the NCCL harness in which every rank lives: set-up, data, registrations. */
#include "nccl_rank.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define KIB 1024u
#define MIB (1024u * KIB)
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LARGE_MIB 16u /* each page has several of a sanitizer's */
#else
#define LARGE_MIB 64u
#endif
#define LINKS	      64
#define HANDLE_ADDR   56 /* bytes of the handle before its address */
#define HANDLE_LISTEN 48
#define HANDLE_NETNS  52
#define HANDLE_HOST   8
#define STRANGERS     300 /* more than gx has places for on their way up */

static const size_t sizes_short[] = {8, 0, 1, 4096, 7};
static const size_t sizes_all[] = {0, 1, 7, 8, 4 * KIB, 64 * KIB, 64 * KIB + 1, 512 * KIB, MIB};

static unsigned other(const struct rank *r)
{
	return 1 - r->me;
}

/* ---- Versions and sizes ---- */

static void sizes_run(struct rank *r, const size_t *sizes, unsigned nr, unsigned count)
{
	struct link l;
	struct stream s = {.link = &l,
			   .count = count,
			   .depth = 8,
			   .sizes = sizes,
			   .nr_sizes = nr,
			   .seed = 100};

	rank_link(r, &l, other(r), 0);
	rank_stream(r, &s);
	barrier(r);
	rank_unlink(r, &l);
}

static void case_sizes(struct rank *r)
{
	static const size_t large[] = {LARGE_MIB * MIB + 3};
	static const size_t largest[] = {1024u * MIB - 64};

	sizes_run(r, sizes_all, sizeof(sizes_all) / sizeof(sizes_all[0]), 64);
	if (r->is_full) {
		struct link l;
		struct stream s = {.link = &l,
				   .count = 1,
				   .depth = 1,
				   .sizes = largest,
				   .nr_sizes = 1,
				   .seed = 5};

		rank_link(r, &l, other(r), 0);
		rank_stream(r, &s);
		barrier(r);
		rank_unlink(r, &l);
	} else {
		sizes_run(r, large, 1, 1);
	}
}

static void case_no_device(struct rank *r, int dev)
{
	const struct nccl_net_v12 *t = r->net.v12;
	char handle[NCCL_HANDLE_B];
	struct nccl_dev_handle *send_dev = NULL;
	struct nccl_props_v12 p;
	void *comm = NULL, *listen = NULL;

	CHECK(t->get_properties(dev, &p) == NCCL_INVALID_ARGUMENT);
	CHECK(t->listen(r->ctx, dev, handle, &comm) == NCCL_INVALID_ARGUMENT && !comm);
	CHECK(!net_listen(&r->net, r->ctx, handle, &listen) && !t->close_listen(listen));
	CHECK(t->connect(r->ctx, dev, handle, &comm, &send_dev) == NCCL_INVALID_ARGUMENT && !comm);
}

/* Older tables, one after the other: these have no finalize, so they come last. */
static void case_versions(struct rank *r)
{
	static const int versions[] = {11, 10};
	struct nccl_props_v12 p12;
	struct nccl_props_v10 p10;

	CHECK(!r->net.v12->get_properties(0, &p12));
	CHECK(p12.ptr_support == NCCL_PTR_HOST && p12.recvs_max == 1 && p12.p2p_b_max &&
	      p12.multi_request_max == 1 && !p12.pci_path && p12.rail == -1);
	CHECK(p12.device_type == NCCL_DEVICE_HOST && !p12.device_version);
	CHECK(!strstr(net_opened(), " near the GPU"), "%s", net_opened());
	case_no_device(r, -1);
	case_no_device(r, 4);
	CHECK(r->net.v12->irecv_consumed && !r->net.v12->set_net_attr);
	sizes_run(r, sizes_short, 5, 40);
	for (unsigned i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
		int nr = 0;

		barrier(r);
		CHECK(!net_finalize(&r->net, r->ctx));
		net_load(&r->net, versions[i]);
		CHECK(!net_init(&r->net, &r->ctx));
		CHECK(!r->net.v12->devices(&nr) && nr == 4);
		sizes_run(r, sizes_short, 5, 40);
	}
	CHECK(!((const struct nccl_net_v10 *)r->net.table)->get_properties(0, &p10));
	CHECK(p10.ptr_support == NCCL_PTR_HOST && p10.speed_mbps > 0 && p10.recvs_max == 1);
}

/* ---- Set-up ---- */

/* Rank 0 connects and sends before rank 1 accepts. */
static void case_early(struct rank *r)
{
	char handle[NCCL_HANDLE_B];
	void *comm = NULL, *listen = NULL, *req;
	struct buf b;
	int size = -1;

	if (r->me == 1) {
		CHECK(!net_listen(&r->net, r->ctx, handle, &listen));
		mail_put(r, 0, 0, handle);
		barrier(r); /* the other has sent */
		comm = accept_wait(r, listen);
		buf_open(r, comm, &b, 5000);
		CHECK(!net_irecv(&r->net, comm, b.base, 5000, b.mh, &req) && req);
		req_wait(r, req, &size);
		CHECK(size == 4999 && pattern_is(b.base, 4999, 3));
	} else {
		mail_get(r, 1, 0, handle);
		comm = connect_wait(r, handle);
		buf_open(r, comm, &b, 5000);
		pattern_fill(b.base, 4999, 3);
		CHECK(!net_isend(&r->net, comm, b.base, 4999, b.mh, &req) && req);
		barrier(r);
		req_wait(r, req, &size);
	}
	barrier(r);
	buf_close(r, comm, &b);
	CHECK(!(r->me ? r->net.v12->close_recv(comm) : r->net.v12->close_send(comm)));
	CHECK(!listen || !r->net.v12->close_listen(listen));
}

/* A connect that NCCL began, and is slow to go on with: the peer accepts meanwhile. */
static void case_asks(struct rank *r)
{
	char handle[NCCL_HANDLE_B];
	void *comm = NULL, *listen;

	if (r->me == 1) {
		CHECK(!net_listen(&r->net, r->ctx, handle, &listen));
		mail_put(r, 0, 0, handle);
		comm = accept_wait(r, listen);
		barrier(r);
		barrier(r);
		CHECK(!r->net.v12->close_listen(listen) && !r->net.v12->close_recv(comm));
	} else {
		mail_get(r, 1, 0, handle);
		CHECK(!net_connect(&r->net, r->ctx, handle, &comm));
		barrier(r); /* the other has accepted */
		if (!comm)
			comm = connect_wait(r, handle);
		barrier(r);
		CHECK(!r->net.v12->close_send(comm));
	}
}

/* One listener, several connects: each accept gives another comm, in order. */
static void case_listener(struct rank *r)
{
	char handle[NCCL_HANDLE_B], copy[NCCL_HANDLE_B];
	void *comm[4] = {NULL}, *listen, *none;

	if (r->me == 1) {
		CHECK(!net_listen(&r->net, r->ctx, handle, &listen));
		mail_put(r, 0, 0, handle);
		for (unsigned i = 0; i < 4; i++)
			comm[i] = accept_wait(r, listen);
		CHECK(!r->net.v12->accept(listen, &none, NULL) && !none);
		CHECK(!r->net.v12->close_listen(listen));
	} else {
		mail_get(r, 1, 0, handle);
		for (unsigned i = 0; i < 4; i++) {
			memcpy(copy, handle, sizeof(copy));
			comm[i] = connect_wait(r, copy);
		}
	}
	barrier(r);
	for (unsigned i = 0; i < 4; i++)
		CHECK(!(r->me ? r->net.v12->close_recv(comm[i]) : r->net.v12->close_send(comm[i])));
}

/* A connect with this handle must fail. */
static void connect_fails(struct rank *r, const char *handle)
{
	char copy[NCCL_HANDLE_B];
	void *comm = NULL;
	int ret = 0;

	memcpy(copy, handle, sizeof(copy));
	UNTIL(({
		ret = net_connect(&r->net, r->ctx, copy, &comm);
		CHECK(!comm, "a wrong handle gave a comm");
		ret;
	}));
}

/* Anybody may do that. */
static int listener_dial(const char *handle)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	unsigned port = 0;

	CHECK(sscanf(handle + HANDLE_ADDR, "127.0.0.1:%u", &port) == 1);
	sa.sin_port = htons((uint16_t)port);
	CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&sa, sizeof(sa)));
	return fd;
}

/* What anybody may send to the listener's address. */
static void listener_scribble(const char *handle)
{
	static const char http[] = "GET / HTTP/1.0\r\n\r\n";

	for (unsigned i = 0; i < 20; i++) {
		int fd = listener_dial(handle);
		char junk[300];

		pattern_fill(junk, sizeof(junk), i);
		if (i % 2)
			send(fd, http, sizeof(http), MSG_NOSIGNAL);
		else
			send(fd, junk, i * sizeof(junk) / 20, MSG_NOSIGNAL);
		close(fd);
	}
}

/* Refused at once: nobody is asked what a name means. */
static const char *const addrs_wrong[] = {
	"",	     "localhost:1",    "host.invalid:7501", "127.0.0.1", "127.0.0.1.5:7501",
	"[::1:7501", "[localhost]:75", "[127.0.0.1]:7501",  "::1:7501",	 "[::1]7501",
};

static void case_wrong(struct rank *r)
{
	char handle[NCCL_HANDLE_B], bad[NCCL_HANDLE_B];
	void *listen, *none;

	if (r->me == 1) {
		CHECK(!net_listen(&r->net, r->ctx, handle, &listen));
		mail_put(r, 0, 0, handle);
		barrier(r);
		CHECK(!r->net.v12->accept(listen, &none, NULL) && !none, "a wrong token opened");
		CHECK(!r->net.v12->close_listen(listen));
	} else {
		mail_get(r, 1, 0, handle);
		for (unsigned i = 0; i < 3; i++) {
			static const unsigned at[] = {HANDLE_TOKEN + 5, HANDLE_LISTEN, 0};

			memcpy(bad, handle, sizeof(bad));
			bad[at[i]] ^= 1;
			connect_fails(r, bad);
		}
		for (unsigned i = 0; i < sizeof(addrs_wrong) / sizeof(addrs_wrong[0]); i++) {
			memcpy(bad, handle, sizeof(bad));
			snprintf(bad + HANDLE_ADDR, 64, "%s", addrs_wrong[i]);
			CHECK(net_connect(&r->net, r->ctx, bad, &none) == NCCL_INVALID_ARGUMENT,
			      "%s", addrs_wrong[i]);
		}
		/* Loopback of another host, of another network namespace: nobody is asked. */
		for (unsigned at = 0; at < 2; at++) {
			memcpy(bad, handle, sizeof(bad));
			bad[at ? HANDLE_NETNS : HANDLE_HOST] ^= 1;
			CHECK(net_connect(&r->net, r->ctx, bad, &none) == NCCL_INVALID_ARGUMENT,
			      "a loopback that is not ours");
		}
		memset(bad, 0, sizeof(bad));
		connect_fails(r, bad);
		pattern_fill(bad, sizeof(bad), 9);
		connect_fails(r, bad);
		listener_scribble(handle);
		barrier(r);
	}
	barrier(r);
	if (r->me == 0) /* its listener is closed */
		connect_fails(r, handle);
	barrier(r);
	sizes_run(r, sizes_short, 5, 10);
}

/* Many that connect and say nothing, and many that do not know the token: a rank gets in. */
static void case_strangers(struct rank *r)
{
	char handle[NCCL_HANDLE_B], bad[NCCL_HANDLE_B];
	void *listen, *comm;
	int fd[STRANGERS];

	if (r->me == 1) {
		CHECK(!net_listen(&r->net, r->ctx, handle, &listen));
		mail_put(r, 0, 0, handle);
		comm = accept_wait(r, listen);
		barrier(r);
		CHECK(!r->net.v12->close_listen(listen) && !r->net.v12->close_recv(comm));
		return;
	}
	mail_get(r, 1, 0, handle);
	for (unsigned i = 0; i < STRANGERS; i++)
		fd[i] = listener_dial(handle);
	for (unsigned i = 0; i < STRANGERS / 4; i++) {
		memcpy(bad, handle, sizeof(bad));
		bad[HANDLE_TOKEN + i % 16] ^= 1;
		connect_fails(r, bad);
	}
	comm = connect_wait(r, handle);
	barrier(r);
	CHECK(!r->net.v12->close_send(comm));
	for (unsigned i = 0; i < STRANGERS; i++)
		close(fd[i]);
}

/* ---- Many comms ---- */

struct crowd {
	struct rank *r;
	struct link link[LINKS];
	struct buf out, in;
	void *req[LINKS][8], *sent[LINKS];
};

static void crowd_open(void *arg)
{
	struct crowd *c = arg;

	for (unsigned i = 0; i < LINKS; i++)
		link_open(c->r, &c->link[i], other(c->r), i);
	buf_open(c->r, c->link[0].send, &c->out, LINKS * 64);
	buf_open(c->r, c->link[0].recv, &c->in, LINKS * 8 * 64);
}

static void crowd_close(void *arg)
{
	struct crowd *c = arg;

	buf_close(c->r, c->link[0].send, &c->out);
	buf_close(c->r, c->link[0].recv, &c->in);
	for (unsigned i = 0; i < LINKS; i++)
		link_close(&c->link[i]);
}

/* More receives than an endpoint of gx has room for, and the peer sends on the last comm first: no
 * comm may wait for another one. */
static void crowd_run(void *arg)
{
	struct crowd *c = arg;
	struct rank *r = c->r;
	int size;

	for (unsigned k = 0; k < 8; k++)
		for (unsigned i = 0; i < LINKS; i++) {
			char *at = c->in.base + (i * 8 + k) * 64;

			CHECK(!net_irecv(&r->net, c->link[i].recv, at, 64, c->in.mh,
					 &c->req[i][k]) &&
			      c->req[i][k]);
		}
	barrier(r);
	for (unsigned k = 0; k < 8; k++)
		for (unsigned i = LINKS; i-- > 0;) {
			pattern_fill(c->out.base + i * 64, 64, i * 8 + k);
			CHECK(!net_isend(&r->net, c->link[i].send, c->out.base + i * 64, 64,
					 c->out.mh, &c->sent[i]) &&
			      c->sent[i]);
			req_wait(r, c->sent[i], &size);
		}
	for (unsigned i = 0; i < LINKS; i++)
		for (unsigned k = 0; k < 8; k++) {
			req_wait(r, c->req[i][k], &size);
			CHECK(size == 64 &&
			      pattern_is(c->in.base + (i * 8 + k) * 64, 64, i * 8 + k));
		}
}

static void case_crowd(struct rank *r)
{
	static struct crowd c;

	c.r = r;
	worker_do(&r->service, crowd_open, &c);
	worker_do(&r->progress, crowd_run, &c);
	barrier(r);
	worker_do(&r->service, crowd_close, &c);
}

/* ---- Back-pressure ---- */

static void full_send(struct rank *r, struct link *l, struct buf *b, void *req[])
{
	void *none;
	int size;

	for (unsigned i = 0; i < NCCL_REQS_MAX; i++) {
		pattern_fill(b->base + i * 100, 100, i);
		CHECK(!net_isend(&r->net, l->send, b->base + i * 100, 100, b->mh, &req[i]) &&
		      req[i]);
	}
	for (unsigned i = 0; i < 100; i++)
		CHECK(!net_isend(&r->net, l->send, b->base, 100, b->mh, &none) && !none,
		      "a 33rd request was taken");
	barrier(r);
	for (unsigned i = NCCL_REQS_MAX; i-- > 0;) /* tested in another order than posted */
		req_wait(r, req[i], &size);
}

static void full_recv(struct rank *r, struct link *l, struct buf *b, void *req[])
{
	void *none;
	int size;

	barrier(r); /* the sender is full */
	for (unsigned i = 0; i < NCCL_REQS_MAX; i++)
		CHECK(!net_irecv(&r->net, l->recv, b->base + i * 100, 100, b->mh, &req[i]) &&
		      req[i]);
	CHECK(!net_irecv(&r->net, l->recv, b->base, 100, b->mh, &none) && !none);
	for (unsigned i = 0; i < NCCL_REQS_MAX; i++) {
		req_wait(r, req[i], &size);
		CHECK(size == 100 && pattern_is(b->base + i * 100, 100, i));
	}
}

static void case_full(struct rank *r)
{
	void *req[NCCL_REQS_MAX];
	struct link l;
	struct buf b;

	rank_link(r, &l, other(r), 0);
	buf_open(r, l.send, &b, NCCL_REQS_MAX * 100);
	for (unsigned round = 0; round < 4; round++) {
		if (r->me == round % 2)
			full_send(r, &l, &b, req);
		else
			full_recv(r, &l, &b, req);
		barrier(r);
	}
	buf_close(r, l.send, &b);
	rank_unlink(r, &l);
}

/* A receive that is too small: the sender learns it. Memory that is not the handle's, and a group
 * of receives: refused at once. */
static void case_misuse(struct rank *r)
{
	void *req, *data[2], *mhs[2], *gpu;
	size_t sizes[2] = {8, 8};
	int tags[2] = {0, 0};
	struct link l;
	struct buf b;

	rank_link(r, &l, other(r), 0);
	buf_open(r, l.send, &b, 4096);
	CHECK(net_isend(&r->net, l.send, b.base + 1, 4096, b.mh, &req) == NCCL_INVALID_ARGUMENT &&
	      !req);
	CHECK(net_isend(&r->net, l.send, b.base - 1, 2, b.mh, &req) == NCCL_INVALID_ARGUMENT &&
	      !req);
	CHECK(net_isend(&r->net, l.send, b.base, 8, NULL, &req) == NCCL_INVALID_ARGUMENT && !req);
	data[0] = data[1] = b.base;
	mhs[0] = mhs[1] = b.mh;
	CHECK(r->net.v12->irecv(l.recv, 2, data, sizes, tags, mhs, NULL, &req) ==
	      NCCL_INVALID_ARGUMENT);
	CHECK(!req);
	CHECK(r->net.v12->reg_mr(l.send, sizes, 8, NCCL_PTR_CUDA, &gpu) && !gpu);
	CHECK(r->net.v12->close_send(l.recv) == NCCL_INVALID_ARGUMENT);
	CHECK(!r->net.v12->iflush(l.recv, 1, data, NULL, mhs, &req) && !req);
	barrier(r);
	if (r->me == 0) {
		CHECK(!net_isend(&r->net, l.send, b.base, 4096, b.mh, &req) && req);
		CHECK(req_error(r, req, WAIT_S * 1000) == NCCL_SYSTEM_ERROR);
	} else {
		CHECK(!net_irecv(&r->net, l.recv, b.base, 4095, b.mh, &req) && req);
	}
	barrier(r);
	buf_close(r, l.send, &b);
	rank_unlink(r, &l);
}

/* ---- Registrations ---- */

struct churn {
	struct rank *r;
	void *comm;
	_Atomic bool stop;
	unsigned rounds;
};

static void churn_run(void *arg)
{
	struct churn *c = arg;
	struct buf b;

	do {
		buf_open(c->r, c->comm, &b, 1 + 777 * (c->rounds % 100));
		buf_close(c->r, c->comm, &b);
		c->rounds++;
	} while (!atomic_load(&c->stop));
}

/* The service thread registers and deregisters while the progress thread posts on the same comm. */
static void case_regs(struct rank *r)
{
	struct link l;
	struct stream s = {.link = &l,
			   .count = 2000,
			   .depth = 8,
			   .sizes = sizes_short,
			   .nr_sizes = 5,
			   .seed = 1};
	struct churn c = {.r = r};

	rank_link(r, &l, other(r), 0);
	c.comm = l.send;
	stream_open(&s);
	worker_run(&r->service, churn_run, &c);
	worker_do(&r->progress, stream_run, &s);
	atomic_store(&c.stop, true);
	worker_wait(&r->service);
	stream_close(&s);
	barrier(r);
	rank_unlink(r, &l);
}

/* ---- Two hosts ---- */

static void run(const char *fmt, ...)
{
	char command[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(command, sizeof(command), fmt, ap);
	va_end(ap);
	CHECK(!system(command), "%s", command);
}

/* This end of a pair of interfaces between the two namespaces. */
static void hosts_join(const struct rank *r)
{
	struct ifreq req = {.ifr_name = "gx0"};
	int fd;

	run("ip link set lo up && ip addr add 10.1.%u.1/24 dev gx0 && ip addr add 10.88.7.%u/24 "
	    "dev gx0 && ip link set gx0 up",
	    r->me + 1, r->me + 1);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0);
	while (!(req.ifr_flags & IFF_RUNNING)) {
		usleep(1000);
		CHECK(!ioctl(fd, SIOCGIFFLAGS, &req));
	}
	close(fd);
}

/* Each rank in a network namespace of its own, as on a host of its own. A key is all that they are
 * given: each tells its addresses, of which the first is in a network that the other one has not, and the
 * link is the one for other hosts. */
static void case_hosts(struct rank *r)
{
	char pid[NCCL_HANDLE_B] = {0}, key[64];
	FILE *f;

	if (system("ip -V >/dev/null 2>&1") || unshare(CLONE_NEWNET)) {
		fprintf(stderr, "note: hosts: no iproute2, or no network namespaces\n");
		return;
	}
	CHECK(!net_finalize(&r->net, r->ctx));
	snprintf(key, sizeof(key), "/tmp/gx-nccl-%d.key", getppid());
	snprintf(pid, sizeof(pid), "%d", getpid());
	barrier(r);
	if (r->me == 1) {
		mail_put(r, 0, 0, pid);
	} else {
		mail_get(r, 1, 0, pid);
		run("ip link add gx0 type veth peer name gx0 netns %s", pid);
		f = fopen(key, "we");
		CHECK(f && !fchmod(fileno(f), 0600) &&
		      fprintf(f, "gx-key 1\nname job\nsecret %064d\n", 7) > 0 && !fclose(f));
	}
	barrier(r);
	hosts_join(r);
	barrier(r);
	setenv("GX_KEY_FILE", key, 1);
	unsetenv("GX_NCCL_PORTS");
	unsetenv("GX_NCCL_LINK");
	CHECK(!net_init(&r->net, &r->ctx) && r->ctx);
	barrier(r);
	if (r->me == 0)
		unlink(key);
	CHECK(strstr(net_opened(), r->me ? "listens at 10.1.2.1:" : "listens at 10.1.1.1:") &&
		      strstr(net_opened(), r->me ? ",10.88.7.2:" : ",10.88.7.1:") &&
		      strstr(net_opened(), "encrypted, with a key"),
	      "%s", net_opened());
	sizes_run(r, sizes_all, sizeof(sizes_all) / sizeof(sizes_all[0]), 64);
	CHECK(strstr(net_connected(), "link tcp"), "%s", net_connected());
}

/* ---- LL ---- */

#define LL_WORDS 8192
#define LL_ITERS 200

struct ll {
	uint64_t *word;
	_Atomic uint32_t iter; /* 0: end */
	_Atomic uint64_t torn, seen;
};

/* Return: the data is not that of its flag. */
static bool ll_is_torn(uint64_t word, unsigned i)
{
	uint32_t data = (uint32_t)word, flag = (uint32_t)(word >> 32);

	return data != (uint32_t)mix(flag + (uint64_t)i * LL_ITERS);
}

/* As NCCL's kernel does with protocol LL: it reads data and flag as one, while they arrive. */
static void ll_watch(void *arg)
{
	struct ll *ll = arg;
	uint32_t now;

	while ((now = atomic_load(&ll->iter)))
		for (unsigned i = 0; i < LL_WORDS; i++) {
			uint64_t w = __atomic_load_n(&ll->word[i], __ATOMIC_RELAXED);

			if (ll_is_torn(w, i))
				ll->torn++;
			ll->seen++;
		}
}

static void ll_fill(uint64_t *word, uint32_t flag)
{
	for (unsigned i = 0; i < LL_WORDS; i++)
		word[i] = (uint64_t)flag << 32 | (uint32_t)mix(flag + (uint64_t)i * LL_ITERS);
}

static void case_ll(struct rank *r)
{
	struct ll ll = {.iter = 1};
	struct link l;
	struct buf b;
	void *req;

#ifdef __SANITIZE_THREAD__
	return; /* it would call this a race, which it is meant to be */
#endif
	rank_link(r, &l, other(r), 0);
	buf_open(r, l.send, &b, LL_WORDS * 8);
	ll.word = (uint64_t *)(void *)b.base;
	ll_fill(ll.word, 0);
	barrier(r);
	if (r->me == 1)
		worker_run(&r->service, ll_watch, &ll);
	for (uint32_t i = 1; i <= LL_ITERS; i++) {
		if (r->me == 0) {
			ll_fill(ll.word, i);
			CHECK(!net_isend(&r->net, l.send, b.base, b.len, b.mh, &req) && req);
		} else {
			CHECK(!net_irecv(&r->net, l.recv, b.base, b.len, b.mh, &req) && req);
		}
		req_wait(r, req, &(int){0});
	}
	atomic_store(&ll.iter, 0);
	worker_wait(&r->service);
	CHECK(!atomic_load(&ll.torn), "%llu of %llu words were torn", (unsigned long long)ll.torn,
	      (unsigned long long)ll.seen);
	barrier(r);
	buf_close(r, l.send, &b);
	rank_unlink(r, &l);
}

/* ---- Communicators, ranks ---- */

/* A communicator of its own: a context, a service and a progress thread. */
struct second {
	struct rank r;
	struct link l;
	struct stream s;
};

static void second_open(struct second *x, const struct rank *r, unsigned slot)
{
	x->r = *r;
	CHECK(!net_init(&x->r.net, &x->r.ctx));
	worker_start(&x->r.service);
	worker_start(&x->r.progress);
	rank_link(&x->r, &x->l, other(r), slot);
	x->s = (struct stream){.link = &x->l,
			       .count = 400,
			       .depth = 16,
			       .sizes = sizes_all,
			       .nr_sizes = 5,
			       .seed = 1000 * slot};
	stream_open(&x->s);
}

static void second_close(struct second *x)
{
	stream_close(&x->s);
	rank_unlink(&x->r, &x->l);
	worker_end(&x->r.service);
	worker_end(&x->r.progress);
	CHECK(!net_finalize(&x->r.net, x->r.ctx));
}

static void case_two(struct rank *r)
{
	static struct second x[3];

	for (unsigned i = 0; i < 3; i++)
		second_open(&x[i], r, i);
	for (unsigned i = 0; i < 3; i++)
		worker_run(&x[i].r.progress, stream_run, &x[i].s);
	for (unsigned i = 0; i < 3; i++)
		worker_wait(&x[i].r.progress);
	barrier(r);
	for (unsigned i = 0; i < 3; i++)
		second_close(&x[i]);
}

/* All ranks with all others. */
static void case_mesh(struct rank *r)
{
	struct link l[RANKS_MAX];
	struct stream s[RANKS_MAX];

	for (unsigned d = 1; d < r->w->nr_ranks; d++) {
		unsigned q = r->me ^ d; /* both ranks of a pair are at this step */

		rank_link(r, &l[q], q, 0);
		s[q] = (struct stream){.link = &l[q],
				       .count = 50,
				       .depth = 8,
				       .sizes = sizes_all,
				       .nr_sizes = 8,
				       .seed = 10};
	}
	for (unsigned d = 1; d < r->w->nr_ranks; d++)
		rank_stream(r, &s[r->me ^ d]);
	barrier(r);
	for (unsigned d = 1; d < r->w->nr_ranks; d++)
		rank_unlink(r, &l[r->me ^ d]);
}

/* Two GPUs of one process. */
static void case_self(struct rank *r)
{
	struct link l;
	struct stream s = {.link = &l,
			   .count = 100,
			   .depth = 8,
			   .sizes = sizes_all,
			   .nr_sizes = 8,
			   .seed = 10};

	rank_link(r, &l, 0, 0);
	rank_stream(r, &s);
	rank_unlink(r, &l);
}

/* Communicators come and go. NCCL closes as soon as the last request is done: neither end may take
 * the other's close for an error. */
static void case_many(struct rank *r)
{
	unsigned rounds = r->is_full ? 1000 : 40;
	void *ctx = r->ctx;
	struct link l;
	struct stream s = {.link = &l, .count = 6, .depth = 4, .sizes = sizes_short, .nr_sizes = 5};

	for (unsigned i = 0; i < rounds; i++) {
		CHECK(!net_init(&r->net, &r->ctx));
		s.seed = i;
		rank_link(r, &l, other(r), i % MAILS_MAX);
		rank_stream(r, &s);
		rank_unlink(r, &l);
		CHECK(!net_finalize(&r->net, r->ctx));
	}
	r->ctx = ctx;
}

/* Long messages within a host: the thread that tests them reads some of their bytes, unless
 * GX_NCCL_HELP forbids. On a busy machine it may have no CPU at the right moment: so a round in
 * which either rank has helped is enough. */
static void case_help(struct rank *r)
{
	static const size_t sizes[] = {4 * MIB, MIB};
	const char *text = getenv("GX_NCCL_HELP");
	bool helps = !text || strcmp(text, "0") != 0, reads = true;
	double all_mb = 0, helped_mb = 0;

	setenv("GX_NCCL_CORES", "1", 1);
	for (unsigned i = 0; i < 30 && !atomic_load(&r->w->flag[0]) && reads; i++) {
		barrier(r); /* both have seen the flag */
		CHECK(!net_finalize(&r->net, r->ctx));
		CHECK(!net_init(&r->net, &r->ctx));
		net_reads(&all_mb, &helped_mb);
		sizes_run(r, sizes, 2, 32);
		CHECK(!net_finalize(&r->net, r->ctx));
		reads = net_reads(&all_mb, &helped_mb);
		CHECK(!reads || !strcmp(r->port, "local"));
		CHECK(!reads || all_mb == 80, "%.2f MiB of 80", all_mb);
		CHECK(helps || !reads || !helped_mb, "%.2f MiB", helped_mb);
		CHECK(!net_init(&r->net, &r->ctx));
		if (reads && (helped_mb || !helps))
			atomic_store(&r->w->flag[0], 1);
		barrier(r);
	}
	CHECK(!reads || atomic_load(&r->w->flag[0]), "nobody has helped");
}

const struct nccl_case cases_data[] = {
	{"sizes", 2, case_sizes, false, NULL},	       {"versions", 2, case_versions, false, NULL},
	{"early", 2, case_early, false, NULL},	       {"asks", 2, case_asks, false, NULL},
	{"strangers", 2, case_strangers, false, NULL}, {"listener", 2, case_listener, false, NULL},
	{"wrong", 2, case_wrong, false, NULL},	       {"crowd", 2, case_crowd, false, NULL},
	{"full", 2, case_full, false, NULL},	       {"misuse", 2, case_misuse, false, NULL},
	{"regs", 2, case_regs, false, NULL},	       {"ll", 2, case_ll, false, NULL},
	{"hosts", 2, case_hosts, false, NULL},	       {"two", 2, case_two, false, NULL},
	{"mesh", 4, case_mesh, false, NULL},	       {"self", 1, case_self, false, NULL},
	{"many", 2, case_many, false, NULL},	       {"help", 2, case_help, false, NULL},
	{"soak", 3, case_soak, false, NULL},
};
const unsigned nr_cases_data = sizeof(cases_data) / sizeof(cases_data[0]);
