/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers: a prepared list of all descriptors, on a lane of the connection; then its notification. */
#include "engine.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <unordered_map>

static constexpr unsigned BURST = 64;
static constexpr size_t NOTE_MAX_B = 4096;
static constexpr uint64_t LIST_MAX_B = 1ull << 36;
static constexpr uint64_t CALLED_NS = 200000, NAP_MIN_NS = 50000, NAP_MAX_NS = 400000;

/* One list, unless it has more segments or bytes than a list takes. */
nixl_status_t Engine::xfer_fill(Xfer &x, nixl_xfer_op_t op, const nixl_meta_dlist_t &local,
				const nixl_meta_dlist_t &remote) const
{
	std::unordered_map<const Memory *, struct gx_region> regions;
	std::vector<struct gx_seg> segs;
	auto list_end = [&] {
		struct gx_op o = {};
		int ret = gx_list_open(gx, segs.data(), (unsigned)segs.size(), &o.list);

		o.kind = op == NIXL_READ ? GX_OP_GET : GX_OP_PUT;
		o.user = (uint64_t)&x;
		if (!ret)
			x.ops.push_back(o);
		segs.clear();
		return ret;
	};
	size_t n = (size_t)local.descCount();
	uint64_t bytes = 0;
	int ret = 0;

	if (local.descCount() != remote.descCount())
		return NIXL_ERR_INVALID_PARAM;
	segs.reserve(std::min<size_t>(n, GX_SEGS_MAX));
	for (size_t i = 0; !ret && i < n; i++) {
		const auto *here = static_cast<const Memory *>(local[i].metadataP);
		const auto *there = static_cast<const Memory *>(remote[i].metadataP);
		auto [it, is_new] = regions.try_emplace(there);

		if (is_new) {
			it->second.size = sizeof(it->second);
			ret = gx_conn_key(x.link.get(), &there->key, &it->second);
		}
		if (local[i].len != remote[i].len)
			return NIXL_ERR_INVALID_PARAM;
		if (!i || local[i - 1].metadataP != here)
			x.gone.push_back(here->gone);
		if (!ret && (segs.size() == GX_SEGS_MAX || bytes + local[i].len > LIST_MAX_B)) {
			ret = list_end();
			bytes = 0;
		}
		bytes += local[i].len;
		segs.push_back({here->mem, local[i].addr - here->addr, it->second.token,
				remote[i].addr - it->second.addr, local[i].len});
	}
	if (!ret && !segs.empty())
		ret = list_end();
	if (ret)
		NIXL_ERROR << "preparing a transfer: " << gx_error();
	return status_of(ret);
}

/* Here the connection is made, if need be, so that postXfer() does not wait. */
nixl_status_t Engine::prepXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local,
			       const nixl_meta_dlist_t &remote, const std::string &agent,
			       nixlBackendReqH *&handle, const nixl_opt_b_args_t *) const
{
	auto x = std::make_unique<Xfer>();
	nixl_status_t status = peer_link(agent, &x->link);

	if (!status)
		status = xfer_fill(*x, op, local, remote);
	if (!status)
		handle = x.release();
	return status;
}

nixl_status_t Engine::postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &,
			       const nixl_meta_dlist_t &, const std::string &,
			       nixlBackendReqH *&handle, const nixl_opt_b_args_t *opt) const
{
	auto &x = *static_cast<Xfer *>(handle);
	std::lock_guard guard(queue_lock);

	if (x.active)
		return NIXL_ERR_REPOST_ACTIVE;
	if (opt && opt->hasNotif && opt->notifMsg.size() > NOTE_MAX_B)
		return NIXL_ERR_INVALID_PARAM;
	x.notes = opt && opt->hasNotif;
	x.note = x.notes ? opt->notifMsg : std::string();
	x.next = 0;
	x.err = 0;
	if (deadline_ns) {
		uint64_t until = gx_now() + deadline_ns;

		for (struct gx_op &o : x.ops)
			o.deadline_ns = until;
	}
	x.active = true;
	active.push_back(&x);
	queue_turn(true);
	return x.active ? NIXL_IN_PROG : status_of(x.err);
}

nixl_status_t Engine::checkXfer(nixlBackendReqH *handle) const
{
	auto &x = *static_cast<Xfer *>(handle);
	std::lock_guard guard(queue_lock);

	if (x.active)
		queue_turn(true);
	return x.active ? NIXL_IN_PROG : status_of(x.err);
}

/* Operations that are under way end by themselves, and then it is freed. */
nixl_status_t Engine::releaseReqH(nixlBackendReqH *handle) const
{
	auto *x = static_cast<Xfer *>(handle);
	std::lock_guard guard(queue_lock);

	if (x->active) {
		x->left = true;
		x->err = x->err ? x->err : -ECANCELED;
		xfer_cancel(*x);
		queue_turn(true);
	} else {
		delete x;
	}
	return NIXL_SUCCESS;
}

/* ---- Under the lock of the queue ---- */

void Engine::xfer_cancel(Xfer &x) const
{
	struct gx_ep *ep = gx_conn_ep(x.link.get(), 0);

	if (ep)
		gx_cancel(queue, ep, (uint64_t)&x);
}

void Engine::xfer_feed(Xfer &x) const
{
	if (std::any_of(x.gone.begin(), x.gone.end(), [](const auto &g) { return *g; }))
		x.err = x.err ? x.err : -ECANCELED;
	while (!x.err && x.next < x.ops.size()) {
		int ret = gx_post_striped(queue, x.link.get(), &x.ops[x.next],
					  (unsigned)(x.ops.size() - x.next));

		if (ret < 0) {
			x.err = ret;
			xfer_cancel(x);
		} else if (ret == 0) {
			return;
		} else {
			x.next += (size_t)ret;
			x.out += (size_t)ret;
		}
	}
}

/* Nothing of it is under way. */
void Engine::xfer_end(Xfer &x) const
{
	if (!x.err && x.notes)
		x.err = gx_conn_msg(x.link.get(), x.note.data(), (uint32_t)x.note.size());
	if (x.err && !x.left)
		NIXL_ERROR << "a transfer ended: " << gx_strerror(x.err);
	x.active = false;
	if (x.left)
		delete &x;
}

/* Post what waits, turn core 0, take completions, end what is done: a small transfer may be done at
 * once. Return: it did work. */
bool Engine::queue_turn(bool by_nixl) const
{
	struct gx_comp comps[BURST];
	bool worked;
	unsigned n;

	called_ns = by_nixl ? gx_now() : called_ns;
	for (Xfer *x : active)
		xfer_feed(*x);
	worked = gx_core_turn(gx_core(gx, 0), gx_now());
	do {
		n = gx_poll(queue, comps, BURST);
		for (unsigned i = 0; i < n; i++) {
			auto &x = *reinterpret_cast<Xfer *>(comps[i].user);

			x.out--;
			if (comps[i].status && !x.err) {
				x.err = comps[i].status;
				xfer_cancel(x);
			}
		}
	} while (n == BURST);
	for (size_t i = 0; i < active.size();) {
		Xfer &x = *active[i];

		if (x.out || (!x.err && x.next < x.ops.size())) {
			i++;
			continue;
		}
		active.erase(active.begin() + (ptrdiff_t)i);
		xfer_end(x);
	}
	return worked;
}

/* Two threads that spin for one agent would have no CPU left for the other agent of a small host. So
 * this one rests while NIXL's threads call, and longer the longer nothing happens. */
void Engine::help(const std::stop_token &stop)
{
	uint64_t worked_ns = gx_now();

	while (!stop.stop_requested()) {
		uint64_t now = gx_now(), nap = 0;
		std::unique_lock guard(queue_lock, std::try_to_lock);

		if (!guard || now < called_ns + CALLED_NS) {
			nap = CALLED_NS;
			worked_ns = now;
		} else if (queue_turn(false)) {
			worked_ns = now;
		} else if (now - worked_ns > NAP_MIN_NS) {
			nap = std::clamp((now - worked_ns) / 2048, NAP_MIN_NS, NAP_MAX_NS);
		}
		guard = {};
		if (nap)
			std::this_thread::sleep_for(std::chrono::nanoseconds(nap));
	}
}
