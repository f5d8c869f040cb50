/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agents by name, and notifications.
 *
 * The agent that begins a transfer connects, so two that write to one another have two connections.
 * The first note of a connection is the name of the agent that made it; the others are
 * notifications. An agent that comes back under its name brings another address; the old connection
 * ends with the last transfer that refers to it.
 */
#include "engine.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <gx/auth.h>

static const char INFO[] = "gx2 "; /* begins connection info; 1 cut no notifications */
static constexpr uint64_t DIAL_NS = 5000000000;
static constexpr size_t SENDERS_MAX = 65536; /* that strangers may leave here */

/* ---- Peers ---- */

/* Does the connection take the way that the option names? It is said in any case. */
bool Engine::way_is_right(const std::string &agent, struct gx_conn *conn) const
{
	struct gx_conn_info info = GX_INIT(info);

	if (gx_conn_info(conn, &info))
		return false;
	std::string way = std::string("link ") + info.link + ", port " +
			  (*info.port ? info.port : "none") + ": " + info.why;
	if (!require.empty() && require != info.link && require != info.port) {
		NIXL_ERROR << "agent " << agent << " would go by " << way << "; require=" << require
			   << " refuses that";
		return false;
	}
	if (info.path_reason == GX_REASON_LAST_RESORT)
		NIXL_WARN << "agent " << agent << " goes by " << way;
	else
		NIXL_INFO << "agent " << agent << " goes by " << way;
	return true;
}

/* Of .lock of the peer. */
nixl_status_t Engine::peer_dial(const std::string &agent, Peer &peer) const
{
	struct gx_connect_opts opts = GX_INIT(opts);
	struct gx_conn *conn;
	int ret;

	opts.timeout_ns = DIAL_NS;
	if (!key.empty() && agent.size() - 1 < GX_PEER_NAME_MAX) /* as it has named itself */
		opts.peer = agent.c_str();
	if (port == "local" || port == "tcp" || port == "verbs")
		opts.link = port.c_str();
	peer.link.reset();
	ret = gx_connect(gx, peer.addr.c_str(), &opts, &conn);
	if (!ret) {
		Link link(conn, gx_conn_close);

		ret = gx_conn_wait(conn, DIAL_NS);
		if (!ret && !way_is_right(agent, conn))
			return NIXL_ERR_NOT_ALLOWED;
		if (!ret)
			ret = notes_send(link, localAgent);
		if (!ret) {
			peer.link = link;
			return NIXL_SUCCESS;
		}
	}
	NIXL_ERROR << "agent " << agent << " at " << peer.addr << ": " << error_text();
	/* Whatever it was, there is no such agent there now. */
	return ret == -EINVAL || ret == -EPERM ? NIXL_ERR_INVALID_PARAM
					       : NIXL_ERR_REMOTE_DISCONNECT;
}

/* A connection to the agent that is up, made now where there is none. */
nixl_status_t Engine::peer_link(const std::string &agent, Link *out) const
{
	struct gx_conn_info info = GX_INIT(info);
	std::shared_ptr<Peer> peer;
	nixl_status_t status;

	{
		std::lock_guard guard(peers_lock);
		auto it = peers.find(agent);
		if (it == peers.end())
			return NIXL_ERR_NOT_FOUND;
		peer = it->second;
	}
	std::lock_guard guard(peer->lock);
	if (!peer->link || gx_conn_info(peer->link.get(), &info) ||
	    info.state != GX_CONN_STATE_UP) {
		status = peer_dial(agent, *peer);
		if (status)
			return status;
	}
	*out = peer->link;
	return NIXL_SUCCESS;
}

nixl_status_t Engine::getConnInfo(std::string &out) const
{
	out = INFO + addr;
	return NIXL_SUCCESS;
}

nixl_status_t Engine::loadRemoteConnInfo(const std::string &agent, const std::string &info)
{
	auto peer = std::make_shared<Peer>();

	if (info.compare(0, strlen(INFO), INFO) && agent != localAgent) {
		NIXL_ERROR << "agent " << agent << " has another version of backend GX ("
			   << info.substr(0, strspn(info.c_str(), "gx0123456789"))
			   << "), and this one is " << INFO << "of " << GX_VERSION
			   << ": install the same gx at both";
		return NIXL_ERR_MISMATCH;
	}
	peer->addr = agent == localAgent ? addr : info.substr(strlen(INFO));
	std::lock_guard guard(peers_lock);
	peers[agent] = peer;
	return NIXL_SUCCESS;
}

nixl_status_t Engine::connect(const std::string &agent)
{
	Link link;

	return peer_link(agent, &link);
}

nixl_status_t Engine::disconnect(const std::string &agent)
{
	std::lock_guard guard(peers_lock);

	return peers.erase(agent) ? NIXL_SUCCESS : NIXL_ERR_NOT_FOUND;
}

/* ---- Notifications ---- */

/* One op for each note; @notes lives until they are posted. */
void notif_ops(const std::string &notes, std::vector<struct gx_op> &ops)
{
	size_t at = 0;

	do {
		struct gx_op op = {};

		op.kind = GX_OP_PUT;
		op.flags = GX_OP_NOTE;
		op.note = notes.data() + at;
		op.note_len = (uint32_t)std::min<size_t>(notes.size() - at, GX_NOTE_MAX);
		ops.push_back(op);
		at += GX_NOTE_MAX;
	} while (at < notes.size());
}

nixl_status_t Engine::getNotifs(notif_list_t &out)
{
	std::lock_guard guard(queue_lock);

	queue_turn(TURNS);
	out = std::move(notifs);
	notifs.clear();
	return NIXL_SUCCESS;
}

nixl_status_t Engine::genNotif(const std::string &agent, const std::string &msg) const
{
	Link link;
	nixl_status_t status;

	if (msg.size() > NOTIF_MAX_B)
		return NIXL_ERR_INVALID_PARAM;
	status = peer_link(agent, &link);
	return status ? status : status_of(notes_send(link, notif_cut(msg, notif_number++)));
}

/* It waits while the queue is full. Pieces of other threads may come in between. */
int Engine::notes_send(const Link &link, const std::string &notes) const
{
	std::vector<struct gx_op> ops;

	notif_ops(notes, ops);
	for (size_t i = 0; i < ops.size();) {
		std::lock_guard guard(queue_lock);
		int ret = gx_post_striped(queue, link.get(), &ops[i], 1);

		sending += ret > 0;
		i += ret > 0;
		queue_turn(TURNS);
		if (ret < 0)
			return ret;
	}
	return 0;
}

/* Under the lock of the queue. The note holds its connection, which gx frees when it is down. */
void Engine::note_came(const struct gx_comp &comp) const
{
	struct gx_conn *conn = gx_ep_conn(comp.ep);
	const char *note = (const char *)comp.note;
	std::string text;
	auto *from = static_cast<Sender *>(gx_conn_user(conn));

	if (from) {
		if (from->note_take(note, comp.note_len, &text, halves))
			notifs.emplace_back(from->name, std::move(text));
	} else if (senders.size() < SENDERS_MAX) {
		text.assign(note, comp.note_len);
		gx_conn_user_set(conn, &senders.try_emplace(text, Sender{text}).first->second);
	}
}
