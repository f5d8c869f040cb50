/* SPDX-License-Identifier: Apache-2.0 */
/* The backend's options, its context, its memory; and what NIXL loads. */
#include "engine.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>

#include <gx/auth.h>
#include <gx/env.h>
#include <gx/log.h>

static constexpr uint64_t RESOLVE_NS = 5000000000;
static constexpr uint64_t LINGER_NS = 100000000; /* for notifications that were sent last */

static const struct gx_name api_names[] = {
	{"gx_auth_opts.key_file", "GX_KEY_FILE"},
	{"gx_auth_opts.key_files", "GX_KEY_FILE"},
	{"gx_connect_opts.link", "require"},
	{"gx_connect_opts.ports", "port"},
	{"gx_opts.bind_host", "GX_ADDR"},
	{"gx_opts.cpus", "cores"},
	{"gx_opts.insecure", "insecure=yes"},
	{"gx_opts.nr_cores", "cores"},
	{"gx_opts.ports", "port"},
	{nullptr, nullptr},
};

std::string error_text()
{
	std::string text = gx_error();

	gx_names_say(api_names, text.data());
	return text.c_str();
}

nixl_status_t status_of(int err)
{
	static const std::map<nixl_status_t, std::set<int>> statuses = {
		{NIXL_SUCCESS, {0}},
		{NIXL_ERR_REMOTE_DISCONNECT,
		 {ENOTCONN, ECONNRESET, ECONNREFUSED, ECONNABORTED, ENETUNREACH}},
		{NIXL_ERR_CANCELED, {ETIMEDOUT, ECANCELED}},
		{NIXL_ERR_NOT_FOUND, {ESTALE, ENOENT}},
		{NIXL_ERR_MISMATCH, {EXDEV}},
		{NIXL_ERR_NOT_ALLOWED, {EACCES, EPERM}},
		{NIXL_ERR_INVALID_PARAM, {EINVAL, ERANGE, EFAULT, EMSGSIZE}},
	};
	for (const auto &[status, errs] : statuses)
		if (errs.count(-err))
			return status;
	return NIXL_ERR_BACKEND;
}

/* What NIXL's get_plugin_params() says. Programs give all of it back. */
static const nixl_b_params_t options = {
	{"copy", "auto"}, {"cores", "1"}, {"deadline_ms", "0"}, {"insecure", "no"},
	{"key", ""},	  {"port", ""},	  {"require", ""},	{"sms", "0"},
};

/* A name that it does not know is an error: a "require" that is spelled wrong would require
 * nothing. */
bool Engine::options_take(const nixl_b_params_t &params, unsigned *nr_cores)
{
	static const std::map<std::string, enum gx_copy_by> copies = {
		{"auto", GX_COPY_AUTO}, {"ce", GX_COPY_CE}, {"resident", GX_COPY_RESIDENT}};

	for (const auto &[name, value] : params) {
		char *end = nullptr;
		unsigned long number = strtoul(value.c_str(), &end, 10);
		bool is_number = !value.empty() && !*end;

		if (name == "require") {
			require = value;
		} else if (name == "port") {
			port = value.substr(0, value.find('@'));
			host = value.find('@') == std::string::npos
				       ? ""
				       : value.substr(value.find('@') + 1);
		} else if (name == "key") {
			key = value;
		} else if (name == "insecure" && (value == "yes" || value == "no")) {
			insecure = value == "yes";
		} else if (name == "cores" && is_number && number >= 1 && number <= 64) {
			*nr_cores = (unsigned)number;
		} else if (name == "sms" && is_number && number <= 1024) {
			gpu.sms = (unsigned)number;
		} else if (name == "copy" && copies.count(value)) {
			gpu.copy = copies.at(value);
		} else if (name == "deadline_ms" && is_number) {
			deadline_ns = number * 1000000;
		} else {
			NIXL_ERROR << "backend GX has no option " << name << "=" << value
				   << "; it has require=LINK|PORT, port=NAME[@ADDRESS], key=FILE, "
				      "insecure=yes|no, cores=1..64, deadline_ms=N, "
				      "copy=auto|ce|resident, sms=N";
			return false;
		}
	}
	return true;
}

/* Agents of other hosts may know another host by that name, or none: they are told its address. */
bool Engine::host_resolve()
{
	bool is_v6 = host.find(':') != std::string::npos;
	char list[GX_LIST_MAX];

	if (gx_env_resolve(((is_v6 ? "[" + host + "]" : host) + ":1").c_str(), RESOLVE_NS, list) <
	    0)
		return false;
	host = list;
	host = host.substr(0, host.find(','));
	host.resize(host.rfind(':'));
	if (host[0] == '[')
		host = host.substr(1, host.size() - 2);
	return true;
}

bool Engine::context_open(unsigned nr_cores)
{
	struct gx_opts opts = GX_INIT(opts);
	struct gx_verbs_opts verbs = GX_INIT(verbs);
	struct gx_port_name name = {port.c_str(), nullptr, nullptr, GX_CC_AUTO, 0};
	struct gx_device device = GX_INIT(device);
	struct gx_queue_opts queue_opts = GX_INIT(queue_opts);
	struct gx_auth_opts auth = GX_INIT(auth);
	const char *file;
	char own[GX_ADDR_MAX], list[GX_LIST_MAX];
	bool is_link = port.empty() || port == "local" || port == "tcp" || port == "verbs";
	int ret;

	/* vLLM and LMCache pass no options. */
	if (key.empty() && !insecure && gx_env_key_file())
		key = gx_env_key_file();
	bool every = host.empty() && (!key.empty() || insecure);
	if (every) { /* ports are bound to the best one; agents are told all */
		if (gx_env_addr(nullptr, own))
			return false;
		host = own;
	} else if (!host.empty() && !host_resolve()) {
		return false;
	}
	file = key.c_str();
	opts.nr_cores = nr_cores;
	opts.server = true;
	opts.ports = is_link ? nullptr : &name;
	opts.nr_ports = is_link ? 0 : 1;
	opts.bind_host = host.empty() ? nullptr : host.c_str();
	auth.key_file = file; /* agents connect to one another, both ways */
	auth.key_files = &file;
	auth.nr_key_files = 1;
	auth.name = localAgent.size() - 1 < GX_PEER_NAME_MAX ? localAgent.c_str() : nullptr;
	opts.auth = key.empty() ? nullptr : &auth;
	opts.insecure = insecure;
	opts.gpu = &gpu;
	verbs.all = true;
	opts.verbs = port == "verbs" ? &verbs : nullptr;
	gx_names_log(api_names);
	if (gx_open(&opts, &gx))
		return false;
	for (unsigned i = 0; !gpus && !gx_devices(gx, i, &device); i++)
		gpus = device.kind == GX_DEVICE_GPU;
	if (host.empty())
		host = "127.0.0.1";
	if (host.find(':') != std::string::npos)
		host = "[" + host + "]";
	ret = every ? gx_env_listen(gx, GX_ADDRS_MAX, list, sizeof(list))
		    : gx_listen(gx, (host + ":0").c_str());
	if (ret < 0)
		return false;
	addr = every ? list : host + ":" + std::to_string(ret);
	for (unsigned i = 1; i < nr_cores; i++) {
		if (gx_core_start(gx_core(gx, i)))
			return false;
	}
	queue_opts.notify = true;
	if (gx_queue_open(gx, &queue_opts, &queue))
		return false;
	helper = std::jthread([this](const std::stop_token &stop) { help(stop); });
	return true;
}

Engine::Engine(const nixlBackendInitParams *init) : nixlBackendEngine(init)
{
	unsigned nr_cores = 1;

	if (localAgent.size() >= GX_NOTE_MAX)
		NIXL_ERROR << "backend GX: an agent's name has at most " << GX_NOTE_MAX - 1
			   << " bytes";
	if (localAgent.size() >= GX_NOTE_MAX || !options_take(*init->customParams, &nr_cores)) {
		initErr = true;
		return;
	}
	if (!context_open(nr_cores)) {
		NIXL_ERROR << "backend GX: " << error_text();
		initErr = true;
		return;
	}
	/* NIXL connects an agent to itself without its connection info. */
	loadRemoteConnInfo(localAgent, addr);
}

Engine::~Engine()
{
	if (is_forked()) { /* all stays as the parent has it */
		helper.detach();
		new auto(std::move(peers));
		return;
	}
	helper = {};
	for (uint64_t until = gx_now() + LINGER_NS; queue && sending && gx_now() < until;)
		queue_turn(TURNS);
	for (unsigned i = 1; gx && i < gx_nr_cores(gx); i++)
		gx_core_stop(gx_core(gx, i));
	peers.clear();
	for (Xfer *x : active) {
		x->link.reset();
		if (x->left)
			delete x;
	}
	gx_close(gx);
}

/* ---- Memory ---- */

nixl_mem_list_t Engine::getSupportedMems() const
{
	return gpus ? nixl_mem_list_t{DRAM_SEG, VRAM_SEG} : nixl_mem_list_t{DRAM_SEG};
}

nixl_status_t Engine::registerMem(const nixlBlobDesc &desc, const nixl_mem_t &kind,
				  nixlBackendMD *&out)
{
	auto memory = std::make_unique<Memory>(true);
	struct gx_key_opts opts = GX_INIT(opts);
	int ret;

	if (kind != DRAM_SEG && kind != VRAM_SEG)
		return NIXL_ERR_NOT_SUPPORTED;
	memory->addr = desc.addr;
	ret = gx_mem_reg(gx, kind == DRAM_SEG ? GX_MEM_HOST : GX_MEM_CUDA, (int)desc.devId,
			 (void *)desc.addr, desc.len, &memory->mem);
	opts.access = GX_ACCESS_PUT | GX_ACCESS_GET;
	if (!ret)
		ret = gx_mem_key(memory->mem, &opts, &memory->key);
	opts.access = GX_ACCESS_GET;
	if (ret == -EACCES && memory->mem)
		ret = gx_mem_key(memory->mem, &opts, &memory->key);
	if (ret) {
		if (memory->mem)
			gx_mem_free(memory->mem);
		NIXL_ERROR << "registering " << desc.len << " bytes: " << error_text();
		return status_of(ret);
	}
	out = memory.release();
	return NIXL_SUCCESS;
}

/* When it returns, no peer reads or writes there any more. No prepared list that names it is posted
 * from now on. */
nixl_status_t Engine::deregisterMem(nixlBackendMD *meta)
{
	auto *memory = static_cast<Memory *>(meta);
	int ret;

	if (is_forked())
		return NIXL_SUCCESS;
	{
		std::lock_guard guard(queue_lock);
		*memory->gone = true;
	}
	do {
		ret = gx_mem_free(memory->mem);
	} while (ret == -EAGAIN);
	delete memory;
	return status_of(ret);
}

nixl_status_t Engine::getPublicData(const nixlBackendMD *meta, std::string &out) const
{
	const auto *memory = static_cast<const Memory *>(meta);

	out.assign((const char *)memory->key.bytes, sizeof(memory->key.bytes));
	return NIXL_SUCCESS;
}

/* It learns what the key names when there is a connection. */
nixl_status_t Engine::loadRemoteMD(const nixlBlobDesc &desc, const nixl_mem_t &,
				   const std::string &, nixlBackendMD *&out)
{
	auto memory = std::make_unique<Memory>(true);

	if (desc.metaInfo.size() != sizeof(memory->key.bytes))
		return NIXL_ERR_MISMATCH;
	memcpy(memory->key.bytes, desc.metaInfo.data(), sizeof(memory->key.bytes));
	out = memory.release();
	return NIXL_SUCCESS;
}

/* NIXL may unload it after the memory itself was deregistered. */
nixl_status_t Engine::loadLocalMD(nixlBackendMD *in, nixlBackendMD *&out)
{
	auto memory = std::make_unique<Memory>(true);

	memory->key = static_cast<const Memory *>(in)->key;
	out = memory.release();
	return NIXL_SUCCESS;
}

nixl_status_t Engine::unloadMD(nixlBackendMD *meta)
{
	delete meta;
	return NIXL_SUCCESS;
}

/* ---- What NIXL loads ---- */

extern "C" NIXL_PLUGIN_EXPORT nixlBackendPlugin *nixl_plugin_init()
{
	return nixlBackendPluginCreator<Engine>::create(NIXL_PLUGIN_API_VERSION, "GX", GX_VERSION,
							options, {DRAM_SEG, VRAM_SEG});
}

extern "C" NIXL_PLUGIN_EXPORT void nixl_plugin_fini()
{
}
