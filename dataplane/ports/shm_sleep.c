/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wakes between processes. A core that sleeps has a socket whose name it tells its peers, and writes
 * a word to each of their segments when it is about to sleep. Who then writes an entry sends one
 * datagram. Nobody but the owner reads that socket. So a peer that is hostile can wake us too often,
 * and cannot keep others from it. It cannot have us send anywhere but to such a socket, either.
 *
 * Either the sender sees the word, or the receiver sees the entry: between its two sides the receiver
 * has a barrier run on all CPUs where threads of either process run (membarrier()). So a sender has
 * no fence. Runs on the polling core, but for shm_sleep_close().
 */
#include "gx_internal/fork.h"
#include "gx_internal/mem.h"
#include "ports/shm.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define WAKE_TAKE 64 /* datagrams that one look takes; a flood of more wakes once more */

/* An abstract name, in the network namespace that both ends share. */
static socklen_t wake_name(struct sockaddr_un *un, uint64_t wake)
{
	*un = (struct sockaddr_un){.sun_family = AF_UNIX};
	snprintf(un->sun_path + 1, sizeof(un->sun_path) - 1, "gx-wake-%016llx",
		 (unsigned long long)wake);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(un->sun_path + 1));
}

static int wake_socket(void)
{
	return gx_fd_own(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int shm_sleep_open(struct gx_port_queue *gq, int fd)
{
	struct shm_queue *q = shm_queue_of(gq);
	struct epoll_event ev = {.events = EPOLLIN, .data.fd = -1};
	struct sockaddr_un un;
	uint64_t wake;
	socklen_t len;
	int ret = gx_random(&wake, sizeof(wake));

	if (ret)
		return ret;
	wake |= 1; /* 0 is none */
	len = wake_name(&un, wake);
	q->wake_fd = wake_socket();
	if (q->wake_fd < 0 || bind(q->wake_fd, (struct sockaddr *)&un, len) ||
	    epoll_ctl(fd, EPOLL_CTL_ADD, q->wake_fd, &ev)) {
		ret = -errno;
		shm_sleep_close(q);
		return ret;
	}
	/* Pairs with the acquire in shm_peer_add(). */
	atomic_store_explicit(&q->wake, wake, memory_order_release);
	return 0;
}

void shm_sleep_close(struct shm_queue *q)
{
	if (q->wake_fd >= 0)
		gx_fd_close(q->wake_fd);
	if (q->poke_fd >= 0)
		gx_fd_close(q->poke_fd);
	q->wake_fd = q->poke_fd = -1;
}

int shm_sleep_arm(struct shm_queue *q)
{
	char b[8];

	for (unsigned i = 0; i < WAKE_TAKE && recv(q->wake_fd, b, sizeof(b), 0) >= 0; i++)
		;
	q->nr_asleep++;
	for (unsigned i = 0; i < q->nr_active; i++) {
		struct shm_peer *peer = q->peer[q->half[0].poll[i].peer];

		if (!peer->addr.addr.wake)
			return -EOPNOTSUPP; /* connected before this core had the socket */
		/* See gx_port_is_asleep(). */
		atomic_store_explicit(&peer->rx.hdr->asleep, q->nr_asleep, memory_order_relaxed);
	}
	syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
	return 0;
}

/*
 * EAGAIN has two reasons. The peer has as many datagrams as its socket holds: then it is awake, or
 * will be. Or others, which do not take theirs, have all that may be under way from our socket: then
 * a new one sends it. If the kernel has no memory, the next entry, or the same packet sent once more,
 * tries again.
 */
void shm_wake(struct gx_port_queue *gq, uint32_t index)
{
	struct shm_queue *q = shm_queue_of(gq);
	struct shm_peer *peer = q->peer[index];
	uint32_t word = atomic_load_explicit(&peer->tx.hdr->asleep, memory_order_relaxed);
	struct sockaddr_un un;
	socklen_t len = wake_name(&un, peer->tx_wake);
	ssize_t n = 1;

	for (unsigned try = 0; peer->tx_wake && try < 2; try++) {
		if (try && q->poke_fd >= 0)
			gx_fd_close(q->poke_fd);
		if (try || q->poke_fd < 0)
			q->poke_fd = wake_socket();
		n = sendto(q->poke_fd, "", 1, MSG_NOSIGNAL, (struct sockaddr *)&un, len);
		if (n >= 0 || errno != EAGAIN)
			break;
	}
	if (n < 0 && (errno == ENOMEM || errno == ENOBUFS || errno == EMFILE || errno == EBADF))
		return;
	peer->tx_woken = word;
}
