/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers: a prepared list of all descriptors, on a lane of the connection, and its notification. */
#include "engine.hpp"
#include "rows.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <unordered_map>

static constexpr unsigned BURST = 64;
static constexpr uint64_t LIST_MAX_B = 1ull << 36;
static constexpr uint64_t CALLED_NS = 200000, NAP_MIN_NS = 50000, NAP_MAX_NS = 400000;

/* Equal blocks move as rows of a view; the list stays for a peer, a link or a memory that takes none, and for
 * copy engines: into mapped memory of a GPU only kernels move views. */
int Engine::xfer_rows(Xfer &x, const std::vector<struct gx_seg> &segs) const
{
	struct gx_conn_info info = GX_INIT(info);
	struct gx_view here = {}, there = {};
	Rows rows;

	if (gx_conn_info(x.link.get(), &info) ||
	    (gpu.copy == GX_COPY_CE && info.link == std::string("local")) ||
	    !rows_find(segs, &rows))
		return 0;
	here.run_b = there.run_b = segs[0].len;
	here.nr_rows = there.nr_rows = (uint32_t)segs.size();
	here.rows = rows.here.data();
	there.rows = rows.there.data();
	here.row_b = there.row_b = rows.row_b;
	struct gx_views views = {&here, &there};
	struct gx_op o = x.ops[0];
	int ret = gx_views_open(gx, &views, &o.list);

	if (ret)
		return ret;
	o.mem = segs[0].mem;
	o.token = segs[0].token;
	x.plain = {o};
	x.ops.swap(x.plain);
	return 0;
}

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
			segs.clear();
			bytes = 0;
		}
		bytes += local[i].len;
		segs.push_back({here->mem, local[i].addr - here->addr, it->second.token,
				remote[i].addr - it->second.addr, local[i].len});
	}
	if (!ret && !segs.empty())
		ret = list_end();
	if (!ret && x.ops.size() == 1)
		ret = xfer_rows(x, segs);
	if (ret)
		NIXL_ERROR << "preparing a transfer: " << error_text();
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
	x->lists = x->ops.size();
	if (!status)
		handle = x.release();
	return status;
}

/* From the first operation on. */
void Engine::xfer_arm(Xfer &x) const
{
	x.next = 0;
	x.err = 0;
	x.ops.resize(x.lists);
	/* The list of a put brings it, if both are alone. */
	bool is_brought = x.has_note && x.lists == 1 && x.ops[0].kind == GX_OP_PUT &&
			  x.notes.size() < GX_NOTE_MAX;
	if (x.has_note && !is_brought)
		notif_ops(x.notes, x.ops);
	if (x.lists) {
		x.ops[0].flags = is_brought ? GX_OP_NOTE : 0;
		x.ops[0].note = is_brought ? x.notes.data() : nullptr;
		x.ops[0].note_len = is_brought ? (uint32_t)x.notes.size() : 0;
	}
	for (size_t i = 0; i < x.lists; i++)
		x.ops[i].deadline_ns = deadline_ns ? gx_now() + deadline_ns : 0;
}

nixl_status_t Engine::postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &,
			       const nixl_meta_dlist_t &, const std::string &,
			       nixlBackendReqH *&handle, const nixl_opt_b_args_t *opt) const
{
	auto &x = *static_cast<Xfer *>(handle);
	bool has_note = opt && opt->hasNotif;
	std::lock_guard guard(queue_lock);

	if (x.active)
		return NIXL_ERR_REPOST_ACTIVE;
	if (has_note && opt->notifMsg.size() > NOTIF_MAX_B)
		return NIXL_ERR_INVALID_PARAM;
	x.has_note = has_note;
	x.notes = has_note ? notif_cut(opt->notifMsg, notif_number++) : std::string();
	xfer_arm(x);
	x.active = true;
	active.push_back(&x);
	queue_turn(POST_TURNS);
	return x.active ? NIXL_IN_PROG : status_of(x.err);
}

nixl_status_t Engine::checkXfer(nixlBackendReqH *handle) const
{
	auto &x = *static_cast<Xfer *>(handle);
	std::lock_guard guard(queue_lock);

	if (x.active)
		queue_turn(TURNS);
	return x.active ? NIXL_IN_PROG : status_of(x.err);
}

/* Operations that are under way end by themselves, and then it is freed. */
nixl_status_t Engine::releaseReqH(nixlBackendReqH *handle) const
{
	auto *x = static_cast<Xfer *>(handle);

	if (is_forked())
		return NIXL_SUCCESS;
	std::lock_guard guard(queue_lock);
	if (x->active) {
		x->left = true;
		x->err = x->err ? x->err : -ECANCELED;
		queue_turn(TURNS);
	} else {
		delete x;
	}
	return NIXL_SUCCESS;
}

/* ---- Under the lock of the queue ---- */

/* Nothing has moved by views, which these ends do not take: then by the list, from now on. */
bool Engine::xfer_again(Xfer &x) const
{
	if (x.plain.empty() || (x.err != -EOPNOTSUPP && x.err != -EINVAL))
		return false;
	NIXL_INFO << "a transfer of equal blocks goes as a list: " << gx_strerror(x.err);
	gx_list_close(x.ops[0].list);
	x.ops.clear();
	x.ops.swap(x.plain);
	xfer_arm(x);
	return true;
}

/* A note after the lists waits for their end. */
void Engine::xfer_feed(Xfer &x) const
{
	struct gx_ep *ep = gx_conn_ep(x.link.get(), 0);

	if (std::any_of(x.gone.begin(), x.gone.end(), [](const auto &g) { return *g; }))
		x.err = x.err ? x.err : -ECANCELED;
	while (!x.err && x.next < x.ops.size() && (x.next < x.lists || !x.out)) {
		int ret = gx_post_striped(queue, x.link.get(), &x.ops[x.next], 1);

		if (!ret)
			return;
		(x.next++ < x.lists ? x.out : sending) += ret > 0;
		x.err = std::min(ret, 0);
	}
	if (x.err && x.out && ep)
		gx_cancel(queue, ep, (uint64_t)&x);
}

void Engine::comp_take(const struct gx_comp &comp) const
{
	auto *x = reinterpret_cast<Xfer *>(comp.user);

	if (comp.kind == GX_COMP_NOTIFY) {
		note_came(comp);
	} else if (!x) {
		sending--;
	} else {
		x->out--;
		x->err = x->err ? x->err : comp.status;
	}
}

/* Post what waits, turn core 0, take completions, end what is done: a small transfer may be done at
 * once. A call of NIXL takes longer than some turns. Return: it did work. */
bool Engine::queue_turn(unsigned turns) const
{
	struct gx_comp comps[BURST];
	bool worked = false, took = false;
	unsigned n;

	called_ns = turns > 1 ? gx_now() : called_ns;
	for (unsigned i = 0; !took && i < turns; i++) {
		for (Xfer *x : active)
			xfer_feed(*x);
		worked |= gx_core_turn(gx_core(gx, 0), gx_now());
		for (; (n = gx_poll(queue, comps, BURST)); took = true)
			std::for_each_n(comps, n, [this](const auto &comp) { comp_take(comp); });
	}
	for (size_t i = 0; i < active.size();) {
		Xfer &x = *active[i];

		if (took)
			xfer_feed(x);
		if (x.out || (!x.err && x.next < x.ops.size()) || (!x.left && xfer_again(x))) {
			i++;
			continue;
		}
		active.erase(active.begin() + (ptrdiff_t)i);
		x.active = false;
		if (x.left)
			delete &x;
		else if (x.err)
			NIXL_ERROR << "a transfer ended: " << gx_strerror(x.err);
	}
	for (unsigned i = 0; sending && took && i < turns; i++) /* nobody may call again soon */
		gx_core_turn(gx_core(gx, 0), gx_now());
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
		} else if (queue_turn(1)) {
			worked_ns = now;
		} else if (now - worked_ns > NAP_MIN_NS) {
			nap = std::clamp((now - worked_ns) / 2048, NAP_MIN_NS, NAP_MAX_NS);
		}
		guard = {};
		if (nap)
			std::this_thread::sleep_for(std::chrono::nanoseconds(nap));
	}
}
