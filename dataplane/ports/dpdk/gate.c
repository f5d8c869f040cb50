/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate: memif's handlers and cores in its bursts exclude each other. Bursts are [core]; the
 * rest is control path, and a thread of the gate.
 */
#include "ports/dpdk/dpdk.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <rte_ethdev.h>
#include <rte_interrupts.h>

/*
 * memif's handlers run on DPDK's interrupt thread and take no lock. When a peer dies they unmap its
 * rings, perhaps under a core in a burst there. So gx holds that thread inside a callback. gx lets
 * it go only while no core is in a burst of a memif device: to bring a device up, to make or remove
 * one, and each second for all other work. gx learns from the control connection that a peer died,
 * not from memif. Until a handler runs, the dead peer's rings stay mapped, and a burst there finds
 * nothing.
 */
#define GATE_UP_NS   200000	/* between two such moments while a device comes up */
#define GATE_IDLE_NS 1000000000 /* between two otherwise */
#define GATE_NAP_NS  20000	/* between two looks at a core in a burst */

static struct {
	pthread_mutex_t lock; /* one moment at a time; guards the fields below */
	pthread_cond_t ask;   /* asks the gate's thread to look at its devices again */
	pthread_t thread;
	bool running;
	struct rte_intr_handle *intr;		/* of an eventfd */
	struct dpdk_dev *dev[RTE_MAX_ETHPORTS]; /* devices that cores may burst; NULL: free place */
	/* The next job of the held thread. gate.lock lets one job in at a time. */
	int (*fn)(void *arg); /* NULL: leave the callback and come back */
	void *arg;
	int ret;
	sem_t held, go;
	_Atomic bool shut; /* read by cores; written under lock */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* [core] May the core enter @d? The core writes d->in, then reads gate.shut; gate_shut() writes
 * gate.shut, then reads d->in. Both are seq_cst, so one of them sees the other. */
static inline bool gate_enter(struct dpdk_dev *d)
{
	if (!d->gated)
		return true;
	atomic_exchange_explicit(&d->in, true, memory_order_seq_cst);
	if (gx_likely(!atomic_load_explicit(&gate.shut, memory_order_seq_cst)))
		return true;
	atomic_store_explicit(&d->in, false, memory_order_release);
	return false;
}

static inline void gate_leave(struct dpdk_dev *d)
{
	/* Pairs with the seq_cst load in gate_shut(): the burst has ended. */
	if (d->gated)
		atomic_store_explicit(&d->in, false, memory_order_release);
}

uint16_t dpdk_dev_rx(struct dpdk_dev *d, struct rte_mbuf *m[], uint16_t n)
{
	if (!gate_enter(d))
		return 0;
	n = rte_eth_rx_burst(d->id, d->qid, m, n);
	gate_leave(d);
	return n;
}

uint16_t dpdk_dev_tx(struct dpdk_dev *d, struct rte_mbuf *m[], uint16_t n)
{
	if (!gate_enter(d))
		return 0;
	n = rte_eth_tx_burst(d->id, d->qid, m, n);
	gate_leave(d);
	return n;
}

/* Under gate.lock. Bursts are short, but the kernel may have preempted a core in one. */
static void gate_shut(void)
{
	static const struct timespec nap = {.tv_nsec = GATE_NAP_NS};

	atomic_store_explicit(&gate.shut, true, memory_order_seq_cst);
	for (unsigned i = 0; i < RTE_MAX_ETHPORTS; i++)
		while (gate.dev[i] && atomic_load_explicit(&gate.dev[i]->in, memory_order_seq_cst))
			nanosleep(&nap, NULL);
}

static void sem_take(sem_t *s)
{
	while (sem_wait(s))
		;
}

/* DPDK's interrupt thread waits in here. */
static void gate_hold(void *unused)
{
	uint64_t n;

	if (read(rte_intr_fd_get(gate.intr), &n, sizeof(n)) != sizeof(n))
		return;
	for (;;) {
		sem_post(&gate.held);
		sem_take(&gate.go);
		if (!gate.fn)
			return;
		gate.ret = gate.fn(gate.arg);
	}
}

/* Make that thread enter gate_hold(), after its waiting work. */
static void gate_call_in(void)
{
	uint64_t one = 1;

	if (write(rte_intr_fd_get(gate.intr), &one, sizeof(one)) == sizeof(one))
		sem_take(&gate.held);
}

/* Under gate.lock. With @fn that thread calls it; with NULL it does its waiting work. */
static int gate_moment(int (*fn)(void *arg), void *arg)
{
	gate_shut();
	gate.fn = fn;
	gate.arg = arg;
	sem_post(&gate.go);
	if (fn)
		sem_take(&gate.held);
	else
		gate_call_in();
	atomic_store_explicit(&gate.shut, false, memory_order_release);
	return gate.ret;
}

/* Under gate.lock. */
static bool gate_is_rising(void)
{
	for (unsigned i = 0; i < RTE_MAX_ETHPORTS; i++) {
		struct dpdk_dev *d = gate.dev[i];

		if (d && d->started && !d->risen) {
			d->risen = dpdk_dev_is_up(d);
			if (!d->risen)
				return true;
		}
	}
	return false;
}

static void *gate_thread(void *unused)
{
	struct timespec until;

	pthread_mutex_lock(&gate.lock);
	for (;;) {
		uint64_t ns = gate_is_rising() ? GATE_UP_NS : GATE_IDLE_NS;

		clock_gettime(CLOCK_MONOTONIC, &until);
		ns += (uint64_t)until.tv_nsec;
		until.tv_sec += (time_t)(ns / 1000000000u);
		until.tv_nsec = (long)(ns % 1000000000u);
		pthread_cond_timedwait(&gate.ask, &gate.lock, &until);
		gate_moment(NULL, NULL);
	}
	return NULL;
}

static int gate_intr_open(void)
{
	int fd = eventfd(0, EFD_CLOEXEC);

	if (fd < 0)
		return -errno;
	gate.intr = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);
	if (gate.intr && !rte_intr_fd_set(gate.intr, fd) &&
	    !rte_intr_type_set(gate.intr, RTE_INTR_HANDLE_EXT) &&
	    !rte_intr_callback_register(gate.intr, gate_hold, NULL))
		return 0;
	rte_intr_instance_free(gate.intr);
	close(fd);
	return -ENOMEM;
}

/* Once in a process, under gate.lock. The new thread blocks all signals. */
static int gate_start(void)
{
	pthread_condattr_t attr;
	sigset_t all, was;
	int ret;

	if (gate.running)
		return 0;
	ret = gate.intr ? 0 : gate_intr_open();
	if (ret)
		return ret;
	sem_init(&gate.held, 0, 0);
	sem_init(&gate.go, 0, 0);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&gate.ask, &attr);
	pthread_condattr_destroy(&attr);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	ret = -pthread_create(&gate.thread, NULL, gate_thread, NULL);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	if (ret)
		return ret;
	pthread_setname_np(gate.thread, "gx-memif-gate");
	gate_call_in();
	gate.running = true;
	return 0;
}

/* Call @fn(@arg) on DPDK's interrupt thread, while no core is in a burst. memif's handlers rely on
 * that. */
int dpdk_gate_call(int (*fn)(void *arg), void *arg)
{
	int ret;

	pthread_mutex_lock(&gate.lock);
	ret = gate_start();
	if (!ret)
		ret = gate_moment(fn, arg);
	pthread_cond_signal(&gate.ask);
	pthread_mutex_unlock(&gate.lock);
	return ret;
}

/* Let DPDK's interrupt thread do its waiting work. Returns when it is done. */
void dpdk_gate_let(void)
{
	pthread_mutex_lock(&gate.lock);
	if (gate.running)
		gate_moment(NULL, NULL);
	pthread_mutex_unlock(&gate.lock);
}

/* @is NULL: put a new device into a free place. Return: @is was found. */
bool dpdk_gate_replace(struct dpdk_dev *is, struct dpdk_dev *by)
{
	unsigned i = 0;

	pthread_mutex_lock(&gate.lock);
	while (i < RTE_MAX_ETHPORTS && gate.dev[i] != is)
		i++;
	if (i < RTE_MAX_ETHPORTS)
		gate.dev[i] = by;
	pthread_mutex_unlock(&gate.lock);
	return i < RTE_MAX_ETHPORTS;
}
