/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS of a bootstrap connection, between its socket and auth_tls.c. ctl_conn.c sends with it,
 * ctl_frame.c receives and does the handshake. On the control thread.
 */
#include "control/ctl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ctl_tls_open(struct ctl_conn *cc, const char *name)
{
	struct ctl *ctl = cc->ctl;
	struct ctl_tls *s = malloc(sizeof(*s));

	if (!ctl->tls)
		ctl->tls = auth_tls_ctx_open();
	if (!s || !ctl->tls)
		goto err;
	s->len = s->pos = 0;
	s->ended = s->met = false;
	s->mix = NULL;
	s->t = auth_tls_new(ctl->tls, cc->server, name, cc->key ? cc->key->k.secret : NULL);
	if (!s->t)
		goto err;
	auth_tls_peer(s->t, cc->server	       ? auth_name(ctl->gx)
			    : cc->dial.peer[0] ? cc->dial.peer
					       : NULL);
	cc->tls = s;
	return 0;
err:
	free(s);
	return gx_refuse(GX_REASON_NO_MEMORY, -ENOMEM, "no memory for TLS");
}

void ctl_tls_free(struct ctl_conn *cc)
{
	ctl_tls_forget(cc);
	if (cc->tls)
		auth_tls_free(cc->tls->t);
	free(cc->tls);
	cc->tls = NULL;
}

uint32_t ctl_tls_out(struct ctl_conn *cc, uint8_t **b)
{
	struct ctl_tls *s = cc->tls;

	if (s->pos == s->len) {
		s->pos = 0;
		s->len = (uint32_t)auth_tls_out(s->t, s->out, sizeof(s->out));
	}
	*b = s->out + s->pos;
	return s->len - s->pos;
}

void ctl_tls_end(struct ctl_conn *cc)
{
	if (!cc->tls->ended)
		auth_tls_end(cc->tls->t);
	cc->tls->ended = true;
}

int ctl_tls_half(struct ctl_conn *cc, uint8_t half[AUTH_HALF_B])
{
	struct ctl_tls *s = cc->tls;

	if (!s)
		return 0;
	s->mix = auth_mem_get();
	if (!s->mix || auth_half_new(s->mix->b, half))
		return gx_refuse(GX_REASON_NO_MEMORY, -ENOMEM, "no memory for keys of data");
	return 0;
}

int ctl_tls_meet(struct ctl_conn *cc, const uint8_t half[AUTH_HALF_B])
{
	static const uint8_t none[AUTH_HALF_B];
	int ret = cc->tls ? auth_half_meet(cc->tls->mix->b, half)
			  : (memcmp(half, none, sizeof(none)) ? -EPROTO : 0);

	if (ret == -ENOMEM)
		return gx_refuse(GX_REASON_NO_MEMORY, ret, "no memory for keys of data");
	if (ret)
		return gx_refuse(GX_REASON_PROTOCOL, -EPROTO, "a bad half of an exchange of keys");
	if (cc->tls)
		cc->tls->met = true;
	return 0;
}

void ctl_tls_forget(struct ctl_conn *cc)
{
	if (!cc->tls)
		return;
	auth_mem_put(cc->tls->mix);
	cc->tls->mix = NULL;
	cc->tls->met = false;
}

/* TLS's secret shows that the peer is who it says; the exchange is in no memory of OpenSSL's. */
int ctl_tls_secret(const struct gx_conn *c, const struct auth_dir *dir, struct auth_secret *out)
{
	const struct ctl_tls *s = c->ctl ? c->ctl->tls : NULL;
	struct auth_secret shared;
	int ret;

	if (!s || !s->met)
		return -ENOTCONN;
	ret = auth_tls_secret(s->t, dir, out);
	if (ret)
		return ret;
	shared = *s->mix;
	ret = auth_secret_mix(out, &shared);
	if (ret)
		explicit_bzero(out, sizeof(*out));
	explicit_bzero(&shared, sizeof(shared));
	return ret;
}
