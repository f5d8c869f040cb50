/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages in one copy, between two processes of one host. The sender's OPEN names the address of
 * the bytes. The receiver's core reads them out of the sender's process, a slice in a turn, to their
 * place. No packets follow, so neither core copies into or out of a bounce buffer. When all
 * bytes are in place the message has landed, and the peer gets `done` as for any other.
 *
 * The sender may want its memory back while the receiver reads: an operation is cancelled or late,
 * memory is freed, the connection ends. It then sets the message's bit in memory that both ends
 * map, before its caller hears of the end. The receiver looks at that bit after each read. So it
 * never takes bytes for good that were read too late; the sender's CANCEL ends the message.
 *
 * A message that cannot be read ends with an error at both ends: EFAULT (there is no memory),
 * ECONNRESET (the peer's process has ended), EPERM (the kernel lets us no longer), EIO (any other).
 * After EPERM and EIO all messages that were announced so far end so; later ones come as packets.
 * ECONNRESET ends the connection.
 *
 * A thread that comes to help (gx_help()) reads slices as the core does, by the same call. The core
 * lends it some, and alone judges what a read has given. A message does not end while a helper reads.
 *
 * Here are the system call, the bit, the places of messages that are pulled, and the slices that are
 * lent; pull_in.c has the receiver's part of a turn. Runs on the polling core.
 */
#include "packet/pkt.h"

#include <errno.h>
#include <string.h>

static ssize_t sys_read(pid_t pid, const struct iovec *to, unsigned nr_to, const struct iovec *from,
			unsigned nr_from)
{
	ssize_t ret = process_vm_readv(pid, to, nr_to, from, nr_from, 0);

	return ret < 0 ? -errno : ret;
}

const struct pull_sys pull_sys_kernel = {.read = sys_read};
const struct pull_sys *pull_sys = &pull_sys_kernel;

static struct iovec iov_at(uint64_t addr, uint64_t len)
{
	return (struct iovec){(void *)(uintptr_t)addr, len};
}

/* Errors that gx.h names, and those that pass. */
static ssize_t pull_err(ssize_t err)
{
	if (err == -ESRCH || err == -EFAULT) /* EFAULT: not even the word is there */
		return -ECONNRESET;
	return err == -EPERM || err == -EINTR || err == -ENOMEM || err == -ENOSYS ? err : -EIO;
}

ssize_t pull_who_reads(const struct pull_who *who, void *to, uint64_t from, uint64_t len)
{
	uint8_t word[PULL_WORD_B];
	const struct iovec here[2] = {{word, sizeof(word)}, {to, len}};
	const struct iovec there[2] = {iov_at(who->word_at, sizeof(word)), iov_at(from, len)};
	ssize_t n = pull_sys->read(who->pid, here, 1 + !!len, there, 1 + !!len);

	if (n < 0)
		return pull_err(n);
	if ((size_t)n < sizeof(word) || memcmp(word, who->word, sizeof(word)))
		return -ECONNRESET;
	return n - (ssize_t)sizeof(word);
}

/* ---- The sender ---- */

/* The kernel refuses to read some memory for others (of devices, secret memory), which this process
 * itself can read. Packets carry that. */
static bool memory_is_plain(const struct pkt_ep *e, const char *at, uint64_t len)
{
	char ends[2];
	const struct iovec here = {ends, sizeof(ends)};
	const struct iovec there[2] = {iov_at((uintptr_t)at, 1),
				       iov_at((uintptr_t)at + len - 1, 1)};

	return pull_sys->read(e->pull.own, &here, 1, there, 2) == (ssize_t)sizeof(ends);
}

bool pull_sends(const struct pkt_ep *e, const struct pkt_op *op)
{
	uint32_t over_b = atomic_load_explicit(e->pull.peer_reads, memory_order_relaxed);

	return over_b && op->len > over_b && memory_is_plain(e, op->src, op->len);
}

static uint64_t taken_bit(uint32_t mid)
{
	return 1ull << (mid & 63);
}

static unsigned taken_word(uint32_t mid)
{
	return mid % GX_WIRE_MIDS / 64;
}

/* The message before at this place is done, so the peer does not look at the bit now. The OPEN
 * that leaves later carries the news. */
void pull_give(struct pkt_ep *e, const struct pkt_op *op)
{
	atomic_fetch_and_explicit(&e->pull.taken_tx[taken_word(op->mid)], ~taken_bit(op->mid),
				  memory_order_relaxed);
}

void pull_take_back(struct pkt_ep *e, const struct pkt_op *op)
{
	/* Pairs with pull_is_taken(): as an acquire, it stays before what the caller writes into
	 * the memory from now on. */
	atomic_fetch_or_explicit(&e->pull.taken_tx[taken_word(op->mid)], taken_bit(op->mid),
				 memory_order_acq_rel);
}

/* ---- The receiver ---- */

bool pull_is_taken(struct pkt_ep *e, uint32_t mid)
{
	/* Pairs with pull_take_back(). A read-modify-write, because as a release it stays after
	 * the bytes that were read. */
	return atomic_fetch_or_explicit(&e->pull.taken_rx[taken_word(mid)], 0,
					memory_order_acq_rel) &
	       taken_bit(mid);
}

void pull_due(struct pkt_ep *e, const struct in_msg *m)
{
	uint64_t *due = &e->pull.due[taken_word(m->mid)];

	e->pull.nr_due += !(*due & taken_bit(m->mid));
	*due |= taken_bit(m->mid);
}

void pull_not_due(struct pkt_ep *e, const struct in_msg *m)
{
	uint64_t *due = &e->pull.due[taken_word(m->mid)];

	e->pull.nr_due -= !!(*due & taken_bit(m->mid));
	*due &= ~taken_bit(m->mid);
}

void pull_begin(struct pkt_ep *e, struct in_msg *m)
{
	m->pulled = true;
	pull_due(e, m);
}

void pull_forget(struct pkt_ep *e, struct in_msg *m)
{
	int i;

	if (!m->pulled)
		return;
	m->pulled = false;
	pull_not_due(e, m);
	while ((i = pull_lent_take(e, m)) >= 0) {
		help_free(&e->ep.core->help, (unsigned)i);
		m->pending--;
	}
}

/* ---- Pieces that other threads read ---- */

/* Any thread, while the endpoint waits for it. */
static ssize_t slice_copy(const struct help_slice *p)
{
	return pull_who_reads(p->whose, p->to, p->from, p->len);
}

/* One slice at the end stays for this core. */
void pull_lend(struct pkt_ep *e, struct in_msg *m)
{
	struct help_board *b = &e->ep.core->help;

	while (m->len - m->begun_b > PULL_LENT_B && help_nr_offered(b, e->pull.lent) < PULL_AHEAD) {
		int i = help_offer(b, &(struct help_slice){.copy = slice_copy,
							   .whose = &e->pull.who,
							   .to = m->dst + m->begun_b,
							   .from = m->from + m->begun_b,
							   .len = PULL_LENT_B,
							   .place = m->mid % GX_WIRE_MIDS});

		if (i < 0)
			return;
		e->pull.lent |= 1u << i;
		m->begun_b += PULL_LENT_B;
		m->pending++;
	}
}

int pull_lent_take(struct pkt_ep *e, const struct in_msg *m)
{
	struct help_board *b = &e->ep.core->help;

	for (uint32_t left = e->pull.lent; left; left &= left - 1) {
		unsigned i = (unsigned)__builtin_ctz(left);

		if (b->slice[i].place != m->mid % GX_WIRE_MIDS || !help_take(b, i))
			continue;
		e->pull.lent &= ~(1u << i);
		return (int)i;
	}
	return -1;
}
