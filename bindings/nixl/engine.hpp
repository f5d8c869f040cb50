/* SPDX-License-Identifier: Apache-2.0 */
/* The backend GX of NIXL: one gx context for an agent. NIXL's threads call it, several at a time. */
#ifndef ENGINE_HPP
#define ENGINE_HPP

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gx/gx.h>

#include "backend/backend_plugin.h"
#include "notif.hpp"

/* gx_error(), with the backend's options in place of the API's fields. */
std::string error_text();

/* One op for each note; @notes lives until they are posted. */
void notif_ops(const std::string &notes, std::vector<struct gx_op> &ops);

/* Registered memory: ours, or an agent's that we have the key of. */
struct Memory : nixlBackendMD {
	using nixlBackendMD::nixlBackendMD;
	struct gx_mem *mem = nullptr; /* ours alone */
	uint64_t addr = 0;
	struct gx_key key = {};
	std::shared_ptr<bool> gone = std::make_shared<bool>(false); /* of Engine.queue_lock */
};

/* A connection, closed when neither the peer nor a transfer refers to it. */
using Link = std::shared_ptr<struct gx_conn>;

/* An agent by its name. */
struct Peer {
	std::mutex lock; /* one thread connects; of .link */
	std::string addr;
	Link link; /* the last one; empty: none yet */
};

/* A transfer, prepared once and posted any number of times. Of Engine.queue_lock. */
struct Xfer : nixlBackendReqH {
	~Xfer()
	{
		for (struct gx_op &op : ops)
			gx_list_close(op.list);
		for (struct gx_op &op : plain)
			gx_list_close(op.list);
	}
	Link link;
	std::vector<struct gx_op> ops;		 /* a prepared list each; a note that none brings */
	std::vector<struct gx_op> plain;	 /* the lists, while .ops has them as views */
	std::vector<std::shared_ptr<bool>> gone; /* of our memory that the lists name */
	size_t lists = 0, next = 0, out = 0;	 /* of .ops; the first to post; under way */
	int err = 0;				 /* the first */
	bool active = false;
	bool left = false; /* by its owner: freed when nothing is under way */
	std::string notes; /* notif_cut() of its notification */
	bool has_note = false;
};

class Engine : public nixlBackendEngine
{
      public:
	explicit Engine(const nixlBackendInitParams *init);
	~Engine() override;

	bool supportsRemote() const override
	{
		return true;
	}
	bool supportsLocal() const override
	{
		return true;
	}
	bool supportsNotif() const override
	{
		return true;
	}
	nixl_mem_list_t getSupportedMems() const override;

	nixl_status_t registerMem(const nixlBlobDesc &desc, const nixl_mem_t &kind,
				  nixlBackendMD *&out) override;
	nixl_status_t deregisterMem(nixlBackendMD *meta) override;
	nixl_status_t getPublicData(const nixlBackendMD *meta, std::string &out) const override;
	nixl_status_t loadRemoteMD(const nixlBlobDesc &desc, const nixl_mem_t &kind,
				   const std::string &agent, nixlBackendMD *&out) override;
	nixl_status_t loadLocalMD(nixlBackendMD *in, nixlBackendMD *&out) override;
	nixl_status_t unloadMD(nixlBackendMD *meta) override;

	nixl_status_t getConnInfo(std::string &out) const override;
	nixl_status_t loadRemoteConnInfo(const std::string &agent,
					 const std::string &info) override;
	nixl_status_t connect(const std::string &agent) override;
	nixl_status_t disconnect(const std::string &agent) override;
	nixl_status_t getNotifs(notif_list_t &out) override;
	nixl_status_t genNotif(const std::string &agent, const std::string &msg) const override;

	nixl_status_t prepXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local,
			       const nixl_meta_dlist_t &remote, const std::string &agent,
			       nixlBackendReqH *&handle,
			       const nixl_opt_b_args_t *opt) const override;
	nixl_status_t postXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local,
			       const nixl_meta_dlist_t &remote, const std::string &agent,
			       nixlBackendReqH *&handle,
			       const nixl_opt_b_args_t *opt) const override;
	nixl_status_t checkXfer(nixlBackendReqH *handle) const override;
	nixl_status_t releaseReqH(nixlBackendReqH *handle) const override;

      private:
	/* Options of the backend. */
	std::string require, port, host, key;
	bool insecure = false;
	uint64_t deadline_ns = 0;
	struct gx_gpu_opts gpu = GX_INIT(gpu);

	struct gx *gx = nullptr;
	std::string addr; /* where peers reach us */
	const pid_t pid = getpid();
	bool gpus = false;

	mutable std::mutex peers_lock; /* of .peers, not of what it refers to */
	mutable std::map<std::string, std::shared_ptr<Peer>> peers;
	static constexpr unsigned POST_TURNS = 2, TURNS = 4; /* in a call of NIXL */
	mutable std::mutex queue_lock;			     /* of all below */
	struct gx_queue *queue = nullptr;
	mutable std::map<std::string, Sender> senders; /* that connected; gx_conn_user() */
	mutable std::vector<Half> halves;	       /* of notifications that came in part */
	mutable notif_list_t notifs;
	mutable size_t sending = 0; /* notes of no transfer, under way */
	mutable std::deque<Xfer *> active;
	mutable uint64_t called_ns = 0; /* when NIXL last turned core 0 */

	mutable std::atomic<uint64_t> notif_number = (uint64_t)std::random_device()() << 32;
	std::jthread helper; /* turns core 0 where nobody calls */

	/* A child of fork() has no thread of gx, and another thread may have held the locks. */
	bool is_forked() const
	{
		return getpid() != pid;
	}
	bool host_resolve();
	bool options_take(const nixl_b_params_t &params, unsigned *nr_cores);
	bool context_open(unsigned nr_cores);
	nixl_status_t peer_link(const std::string &agent, Link *out) const;
	nixl_status_t peer_dial(const std::string &agent, Peer &peer) const;
	bool way_is_right(const std::string &agent, struct gx_conn *conn) const;

	nixl_status_t xfer_fill(Xfer &x, nixl_xfer_op_t op, const nixl_meta_dlist_t &local,
				const nixl_meta_dlist_t &remote) const;
	int xfer_rows(Xfer &x, const std::vector<struct gx_seg> &segs) const;
	void xfer_arm(Xfer &x) const;
	bool xfer_again(Xfer &x) const;
	void help(const std::stop_token &stop);
	bool queue_turn(unsigned turns) const; /* 1: the helper's */
	void comp_take(const struct gx_comp &comp) const;
	void note_came(const struct gx_comp &comp) const;
	int notes_send(const Link &link, const std::string &notes) const;
	void xfer_feed(Xfer &x) const;
};

/* What -errno of gx is to NIXL. */
nixl_status_t status_of(int err);

#endif
