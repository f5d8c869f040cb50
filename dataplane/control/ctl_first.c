/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is let in: the first bytes of a client, by which a server goes on in clear or by TLS, or ends
 * without a word; and the client's half of the handshake. A stranger costs its descriptor and a struct
 * ctl_conn: TLS has memory for it when a whole ClientHello of gx is there. On the control thread.
 */
#include "control/ctl.h"
#include "control/rights.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- Server ---- */

static void stranger_drop(struct ctl_conn *cc, const char *why)
{
	ctl_bad(cc->ctl, "peer %s: %s", cc->name, why);
	ctl_conn_close(cc);
}

static void client_let_in(struct ctl_conn *cc)
{
	ctl_conn_tune(cc);
	ctl_conn_goto(cc, CTL_HELLO);
}

/* In clear. The token in a data socket's first frame says whose it is: ctl_data_take(). */
static void first_clear(struct ctl_conn *cc)
{
	uint16_t type;
	uint32_t len;

	if (ctl_conn_may_clear(cc)) {
		client_let_in(cc);
		return;
	}
	if (cc->in_len < CTL_FRAME_HDR_B)
		return;
	if (gx_hello_frame(cc->in, &type, &len)) {
		stranger_drop(cc, "neither TLS nor a frame of gx");
	} else if (type == GX_HELLO_DATA) {
		client_let_in(cc);
	} else {
		if (ctl_may_log(&cc->ctl->refused_rate))
			gx_warn("peer %s was refused: it is of another host and shows no key: give it "
				"one of gx_auth_opts.key_files as its gx_auth_opts.key_file, or set "
				"gx_opts.insecure at both ends to send in clear",
				cc->name);
		stranger_drop(cc, "another host, in clear");
	}
}

/* The client has shown a good ClientHello, so it hears that there are no keys. */
static void first_no_keys(struct ctl_conn *cc, const char *name)
{
	if (ctl_may_log(&cc->ctl->refused_rate))
		gx_warn("peer %s was refused: it shows key %s, and this end has no keys: name its file "
			"in gx_auth_opts.key_files",
			cc->name, name);
	ctl_bad(cc->ctl, "peer %s shows key %s, and there are none", cc->name, name);
	auth_tls_no_keys(cc->ctl->frame);
	if (!ctl_conn_frame_send(cc, AUTH_TLS_ALERT_B))
		ctl_conn_linger(cc, CTL_LINGER_NS);
	else
		ctl_conn_close(cc);
}

/* It hears that its key is not taken, and not why. */
static void first_other_key(struct ctl_conn *cc, const char *name)
{
	const char *why = cc->key ? "with another secret, or wants another gx_auth_opts.name"
				  : "which is not known here";

	if (ctl_may_log(&cc->ctl->refused_rate))
		gx_warn("peer %s was refused: it shows key %s, %s: copy the key file of this end to it",
			cc->name, name, why);
	ctl_bad(cc->ctl, "peer %s shows key %s, %s", cc->name, name, why);
	ctl_conn_linger(cc, CTL_LINGER_NS);
}

static void first_tls(struct ctl_conn *cc, const char *name)
{
	char key[AUTH_TLS_NAME_MAX];
	int ret;

	if (!auth_serves(cc->ctl->gx)) {
		first_no_keys(cc, name);
		return;
	}
	snprintf(key, sizeof(key), "%.*s", (int)strcspn(name, (char[]){AUTH_TLS_BOUND, 0}), name);
	ret = auth_set_find(cc->ctl->gx, key, &cc->key);
	if (ret != -ENOMEM)
		ret = ctl_tls_open(cc, name);
	if (!ret)
		ret = auth_tls_put(cc->tls->t, cc->in, cc->in_len);
	cc->in_len = 0;
	if (!ret)
		ret = auth_tls_step(cc->tls->t);
	if (ret == 1) {
		client_let_in(cc);
		ctl_conn_send(cc);
	} else if (ret == -EACCES) {
		first_other_key(cc, name);
	} else {
		stranger_drop(cc, ret == -ENOMEM ? "no memory for TLS" : "TLS of another kind");
	}
}

void ctl_first_take(struct ctl_conn *cc)
{
	char name[AUTH_TLS_NAME_MAX];

	switch (auth_tls_first(cc->in, cc->in_len, name)) {
	case AUTH_TLS_MORE:
		break;
	case AUTH_TLS_HELLO:
		first_tls(cc, name);
		break;
	case AUTH_TLS_NOT:
		first_clear(cc);
		break;
	case AUTH_TLS_BAD:
		stranger_drop(cc, "TLS of another program");
		break;
	}
}

/* One that routes a network of IPv6 has all its addresses. */
static bool source_same(const struct ctl_conn *a, const struct ctl_conn *b)
{
	return a->came.from_len == b->came.from_len &&
	       !memcmp(a->came.from, b->came.from, a->came.from_len == 16 ? 8 : a->came.from_len);
}

/* A client of gx speaks first, and at once. So one that has not yet may go without a time of grace. */
void ctl_first_limit(struct ctl_conn *cc)
{
	struct ctl_conn *oldest = NULL;
	unsigned n = 0;

	if (cc->loopback)
		return;
	for (struct ctl_conn *o = cc->ctl->conns; o; o = o->next) { /* the newest is first */
		if (!o->server || o->state != CTL_TLS || !source_same(o, cc))
			continue;
		oldest = o;
		n++;
	}
	if (n <= CTL_SOURCE_MAX)
		return;
	if (ctl_may_log(&cc->ctl->full_rate))
		gx_warn("%u connections of one address say nothing, the most: the oldest goes, %s; a "
			"port scan?",
			CTL_SOURCE_MAX, oldest->name);
	stranger_drop(oldest, "too many of its address say nothing");
}

/* ---- Client ---- */

int ctl_first_answer(struct ctl_conn *cc)
{
	switch (auth_tls_step(cc->tls->t)) {
	case 1:
		ctl_conn_goto(cc, CTL_HELLO);
		cc->conn->secret = ctl_tls_secret;
		return rights_take(cc->conn, cc->key);
	case 0:
		return 0;
	case -EACCES:
		return gx_refuse(
			GX_REASON_AUTH, -EACCES,
			"the server does not take key %s: it has another secret of that "
			"name, or none, or another gx_auth_opts.name: copy its key file to "
			"this end again",
			cc->key->k.name);
	case -ENOKEY:
		return gx_refuse(
			GX_REASON_AUTH, -ENOKEY,
			"this end shows key %s, and the server has no keys: name the key's "
			"file in the server's gx_auth_opts.key_files",
			cc->key->k.name);
	case -ENOMEM:
		return gx_refuse(GX_REASON_NO_MEMORY, -ENOMEM, "out of memory");
	default:
		return gx_refuse(GX_REASON_PROTOCOL, -EPROTO, "no TLS, or not as gx speaks it");
	}
}
